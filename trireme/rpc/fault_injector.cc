#include "trireme/rpc/fault_injector.h"

#include <algorithm>
#include <utility>

#include "trireme/rpc/timer.h"

namespace trireme {
namespace {

// Pseudo-random numbers that depend on the seed only (splitmix64).
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}

  // Returns a number in [0, 1).
  double roll() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool happens(double probability) { return roll() < probability; }
  Duration up_to(Duration longest) {
    return Duration(static_cast<Duration::rep>(roll() * static_cast<double>(longest.count())));
  }

 private:
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

bool applies(const FaultRule& rule, const std::string& method, const std::string& peer) {
  return (rule.method.empty() || rule.method == method) && (rule.peer.empty() || rule.peer == peer);
}

}  // namespace

FaultInjector::FaultInjector(uint64_t seed, std::vector<FaultRule> rules)
    : seed_(seed), rules_(std::move(rules)), decided_(rules_.size()) {}

Fault FaultInjector::decide(const std::string& method, const std::string& peer) {
  for (size_t i = 0; i < rules_.size(); ++i) {
    const FaultRule& rule = rules_[i];
    if (!applies(rule, method, peer)) continue;
    MutexLock lock(mutex_);
    // Each decision has its own generator, seeded by the rule and by the number of the call, so
    // that it does not depend on other rules. Below, every number is drawn whether it is used or
    // not, so that one fault's probability does not change the draws of another.
    Dice dice(seed_ ^ (0xd1342543de82ef95u * (i + 1)) ^ (0xaf251af3b0f025b5u * ++decided_[i]));
    Fault fault;
    fault.lose_request = dice.happens(rule.lose_request);
    fault.lose_response = dice.happens(rule.lose_response);
    fault.duplicate = dice.happens(rule.duplicate);
    fault.reorder = dice.happens(rule.reorder);
    fault.cut = dice.happens(rule.cut);
    const bool delayed = dice.happens(rule.delay);
    fault.delay = dice.up_to(rule.longest_delay);
    if (!delayed) fault.delay = {};
    fault.duplicate_delay = dice.up_to(rule.longest_delay);
    fault.cut_after = dice.up_to(std::chrono::milliseconds(2));
    if (fault.any()) ++injected_;
    return fault;
  }
  return {};
}

void FaultInjector::hold(Work work, Duration at_most) {
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    id = ++last_held_;
    held_.push_back({id, std::move(work)});
  }
  internal::run_at(after(at_most), [weak = weak_from_this(), id] {
    const std::shared_ptr<FaultInjector> self = weak.lock();
    if (self) self->release(id);
  });
}

void FaultInjector::release(uint64_t id) {
  Work own;
  {
    MutexLock lock(mutex_);
    const auto found =
        std::find_if(held_.begin(), held_.end(), [id](const Held& held) { return held.id == id; });
    if (found == held_.end()) return;
    own = std::move(found->work);
    held_.erase(found);
  }
  own();
}

void FaultInjector::passed() {
  std::deque<Held> held;
  {
    MutexLock lock(mutex_);
    held.swap(held_);
  }
  for (Held& each : held) each.work();
}

uint64_t FaultInjector::injected() const {
  MutexLock lock(mutex_);
  return injected_;
}

}  // namespace trireme
