#include "trireme/capture/replica_scope.h"

namespace trireme::internal {
namespace {

thread_local int running_replica = -1;

}  // namespace

ReplicaScope::ReplicaScope(int replica) : outer_(running_replica) {
  running_replica = replica;
}

ReplicaScope::~ReplicaScope() {
  running_replica = outer_;
}

int current_replica() {
  return running_replica;
}

}  // namespace trireme::internal
