#pragma once

#include <iosfwd>
#include <memory>
#include <string>

namespace trireme {
namespace internal {
struct Plan;
}

// A captured step as plain data, checked and ready to run. Immutable; a handle that is cheap to
// copy.
class Graph {
 public:
  explicit Graph(std::shared_ptr<const internal::Plan> plan);

  // Checks everything in the file; throws Error, which names the operator and the argument at
  // fault.
  static Graph load(const std::string& path);
  void save(const std::string& path) const;

  const std::string& name() const;
  size_t size() const;  // how many operators

  // A table for people: each operator, what it takes and makes, where it runs and why, whose
  // gradient it is, which variables it writes.
  std::string explain() const;
  // The same as a picture, in Graphviz's language.
  std::string dot() const;

  const std::shared_ptr<const internal::Plan>& plan() const { return plan_; }

 private:
  std::shared_ptr<const internal::Plan> plan_;
};

std::ostream& operator<<(std::ostream& out, const Graph& graph);

}  // namespace trireme
