#pragma once

#include <string>

namespace trireme::internal {

// Where a server listens, written "host:port"; an IPv6 host stands in brackets: "[::1]:2222".
struct Address {
  std::string host;  // without brackets
  int port = 0;      // 1 to 65535

  // Throws Error; its message begins with "address '...'".
  static Address parse(const std::string& text);
  std::string to_string() const;

  // Host names do not tell case, so two spellings of one address are equal once parsed.
  bool operator==(const Address&) const = default;
};

inline constexpr int kMaxPort = 65535;

}  // namespace trireme::internal
