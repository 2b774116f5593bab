#pragma once

#include <string>

namespace trireme::internal {

// Address of a server, written "host:port". An IPv6 host is in brackets: "[::1]:2222".
struct Address {
  std::string host;  // without brackets
  int port = 0;      // 1 to 65535, or 0 for a port that the server picks

  // Throws Error if the text is malformed; the message begins with "address '...'". Converts the
  // host to lower case, because host names are not case-sensitive. Port 0 is rejected.
  static Address parse(const std::string& text);
  // Does the same, but accepts port 0.
  static Address parse_own(const std::string& text);
  std::string to_string() const;

  // Two spellings of one address that differ only in case are equal once parsed.
  bool operator==(const Address&) const = default;
};

inline constexpr int kMaxPort = 65535;

}  // namespace trireme::internal
