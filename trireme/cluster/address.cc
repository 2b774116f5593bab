#include "trireme/cluster/address.h"

#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "trireme/cluster/text.h"

namespace trireme::internal {
namespace {

// Returns true if the text has only letters, digits and characters of `others`.
bool has_only(std::string_view text, std::string_view others) {
  for (const char c : text) {
    if (!absl::ascii_isalnum(c) && others.find(c) == others.npos) return false;
  }
  return true;
}

Address parse_address(const std::string& text, int lowest_port) {
  const auto refuse_address = [&](const std::string& why) {
    refuse("address '" + text + "' " + why);
  };
  if (text.find("://") != text.npos) refuse_address("has a scheme; write host:port alone");

  const std::string_view view = text;
  const bool bracketed = view.starts_with('[');
  const size_t close = view.find(']');
  if (bracketed && close == view.npos) refuse_address("has no ']'; write it as [::1]:2222");
  const size_t colon = bracketed ? close + 1 : view.find(':');
  if (colon >= view.size()) refuse_address("has no port; write host:port");
  if (view[colon] != ':') refuse_address("has no ':' after the ']'; write it as [::1]:2222");
  if (!bracketed && view.find(':', colon + 1) != view.npos) {
    refuse_address("has more than one ':'; write an IPv6 host in brackets, as [::1]:2222");
  }

  const std::string_view host = bracketed ? view.substr(1, close - 1) : view.substr(0, colon);
  if (host.empty()) refuse_address("has no host; write host:port");
  if (!has_only(host, bracketed ? ":.%-_" : ".-_")) {
    refuse_address("has a host with characters that are not allowed in a host name");
  }
  const std::optional<int> port = parse_int(view.substr(colon + 1));
  if (!port || *port < lowest_port || *port > kMaxPort) {
    refuse_address("has port '" + text.substr(colon + 1) + "'; a port is a number from 1 to 65535");
  }
  return {to_lower(std::string(host)), *port};
}

}  // namespace

Address Address::parse(const std::string& text) {
  return parse_address(text, 1);
}

Address Address::parse_own(const std::string& text) {
  return parse_address(text, 0);
}

std::string Address::to_string() const {
  const bool brackets = host.find(':') != host.npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace trireme::internal
