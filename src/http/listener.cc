// SPDX-License-Identifier: Apache-2.0
#include "http/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace nibble::http {
namespace {

constexpr int kBacklog = 1024;  // connections the kernel holds until they are accepted

// A descriptor that is closed unless it is released.
class Descriptor {
 public:
  explicit Descriptor(int family) : value_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (value_ < 0) Fail("cannot open a socket: {}", SystemErrorText(errno));
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  int get() const { return value_; }
  int Release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    FailUsage("{}: the path of a Unix socket has at most {} bytes", path,
              sizeof(address.sun_path) - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Makes room at the path of a socket that nobody listens on any more.
void RemoveLeftSocket(const std::string& path, const sockaddr_un& address) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return;
  if (!S_ISSOCK(status.st_mode)) FailUsage("{} exists and is no socket; give another path", path);
  const Descriptor probe(AF_UNIX);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    FailUsage("{}: a server listens there already; stop it or give another path", path);
  }
  if (errno == ECONNREFUSED) unlink(path.c_str());
}

Listener ListenUnix(const std::string& path) {
  const sockaddr_un address = UnixAddress(path);
  RemoveLeftSocket(path, address);
  Descriptor descriptor(AF_UNIX);
  // Nobody can connect between bind and listen, so the mode is in time.
  if (bind(descriptor.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || listen(descriptor.get(), kBacklog) != 0) {
    Fail("{}: cannot listen: {}", path, SystemErrorText(errno));
  }
  return {descriptor.Release(), AF_UNIX, 0};
}

uint16_t PortOf(int descriptor) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

Listener ListenTcp(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), fmt::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    FailUsage("{} is no address of this machine ({}); give one, for example 127.0.0.1", host,
              gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, freeaddrinfo);
  Descriptor descriptor(address->ai_family);
  const int yes = 1;  // connections of an earlier process that linger do not matter
  setsockopt(descriptor.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(descriptor.get(), address->ai_addr, address->ai_addrlen) != 0 ||
      listen(descriptor.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      FailUsage("port {} of {} is in use; stop who uses it, or give another port (0: any free one)",
                port, host);
    }
    FailUsage("cannot listen on port {} of {}: {}; give another host or port", port, host,
              SystemErrorText(errno));
  }
  const uint16_t bound = PortOf(descriptor.get());
  return {descriptor.Release(), address->ai_family, bound};
}

}  // namespace

Listener Listen(const Options& options) {
  return options.unix_socket.empty() ? ListenTcp(options.host, options.port)
                                     : ListenUnix(options.unix_socket);
}

}  // namespace nibble::http
