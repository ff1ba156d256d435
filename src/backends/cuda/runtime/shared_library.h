// SPDX-License-Identifier: Apache-2.0
// A library of NVIDIA's that is loaded when it is asked for, so that the program starts without it.
#pragma once

#include <dlfcn.h>

#include <initializer_list>

#include "base/error.h"

namespace nibble::cuda {

class SharedLibrary {
 public:
  // The first of `files` that is there. Throws naming `title` and what the loader says.
  SharedLibrary(const char* title, std::initializer_list<const char*> files) : title_(title) {
    for (const char* file : files) {
      if ((handle_ = dlopen(file, RTLD_NOW | RTLD_LOCAL)) != nullptr) return;
    }
    Fail("{} is not installed, which belongs to the CUDA toolkit: {}", title, dlerror());
  }

  template <typename Function>
  void Find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr) Fail("{} has no {}", title_, name);
  }

 private:
  const char* title_;
  void* handle_ = nullptr;  // stays open
};

}  // namespace nibble::cuda
