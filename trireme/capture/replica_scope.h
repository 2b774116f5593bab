#pragma once

namespace trireme::internal {

// Says which replica of strategy.run() the calling thread runs while it lives. Operators that are
// captured meanwhile belong to the replica. Scopes nest, and the innermost counts.
class ReplicaScope {
 public:
  // -1 stands for no replica.
  explicit ReplicaScope(int replica);
  ~ReplicaScope();

  ReplicaScope(const ReplicaScope&) = delete;
  ReplicaScope& operator=(const ReplicaScope&) = delete;

 private:
  const int outer_;
};

// Returns the replica that the calling thread runs; -1 if it runs none.
int current_replica();

}  // namespace trireme::internal
