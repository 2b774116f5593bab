#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/collective/forwarding_group.h"

namespace trireme::internal {

// A member of a group, for tests, whose bytes are changed on their way to the others.
class AlteredGroup final : public ForwardingGroup {
 public:
  using Alter = std::function<std::string(const std::string& key, const std::string& bytes)>;
  // The group must outlive the object.
  AlteredGroup(Group& group, Alter alter) : ForwardingGroup(group), alter_(std::move(alter)) {}

  absl::StatusOr<std::vector<std::string>> exchange(const std::string& key,
                                                    const std::string& bytes,
                                                    Time deadline) override {
    return ForwardingGroup::exchange(key, alter_(key, bytes), deadline);
  }

 private:
  const Alter alter_;
};

}  // namespace trireme::internal
