#include "trireme/cluster/address.h"

#include "trireme/cluster/expect_error.h"

namespace trireme::internal {
namespace {

std::string problem(const std::string& text) {
  return error_of([&] { Address::parse(text); });
}

TEST(Address, ReadsHostAndPort) {
  EXPECT_EQ(Address::parse("machine-b.example.com:2222"), (Address{"machine-b.example.com", 2222}));
  EXPECT_EQ(Address::parse("10.0.0.1:1").to_string(), "10.0.0.1:1");
  EXPECT_EQ(Address::parse("A:65535"), Address::parse("a:65535"));
}

TEST(Address, KeepsIpv6InBrackets) {
  EXPECT_EQ(Address::parse("[::1]:2222"), (Address{"::1", 2222}));
  EXPECT_EQ(Address::parse("[fe80::1%eth0]:2222").to_string(), "[fe80::1%eth0]:2222");
}

TEST(Address, AServerMayPickThePortOfItsOwn) {
  EXPECT_EQ(Address::parse_own("b:0"), (Address{"b", 0}));
  EXPECT_EQ(Address::parse_own("b:1"), (Address{"b", 1}));
}

TEST(Address, RejectsMalformedAddresses) {
  EXPECT_EQ(problem("b"), "address 'b' has no port; write host:port");
  EXPECT_EQ(problem(""), "address '' has no port; write host:port");
  EXPECT_EQ(problem("[::1]"), "address '[::1]' has no port; write host:port");
  EXPECT_EQ(problem(":2222"), "address ':2222' has no host; write host:port");
  EXPECT_EQ(problem("[]:2222"), "address '[]:2222' has no host; write host:port");
  EXPECT_EQ(problem("b:"), "address 'b:' has port ''; a port is a number from 1 to 65535");
  EXPECT_EQ(problem("b:0"), "address 'b:0' has port '0'; a port is a number from 1 to 65535");
  EXPECT_EQ(problem("b:65536"),
            "address 'b:65536' has port '65536'; a port is a number from 1 to 65535");
  EXPECT_EQ(problem("b:-1"), "address 'b:-1' has port '-1'; a port is a number from 1 to 65535");
  EXPECT_EQ(problem("::1:2222"),
            "address '::1:2222' has more than one ':'; write an IPv6 host in brackets, as "
            "[::1]:2222");
  EXPECT_EQ(problem("[::1:2222"), "address '[::1:2222' has no ']'; write it as [::1]:2222");
  EXPECT_EQ(problem("[::1]2222"),
            "address '[::1]2222' has no ':' after the ']'; write it as [::1]:2222");
  EXPECT_EQ(problem("grpc://b:2222"),
            "address 'grpc://b:2222' has a scheme; write host:port alone");
  EXPECT_EQ(problem("b c:2222"),
            "address 'b c:2222' has a host with characters that are not allowed in a host name");
}

}  // namespace
}  // namespace trireme::internal
