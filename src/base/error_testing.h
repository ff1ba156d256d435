// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "nibble/error.h"

namespace nibble {

// The message of the nibble::Error that `call` throws; "" if it throws none.
template <typename Call>
std::string ErrorOf(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace nibble
