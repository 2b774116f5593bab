#pragma once

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>

#include "trireme/base/access.h"

namespace trireme {
namespace internal {
struct Plan;
}

// A captured step as plain data: its operators in order, checked and ready to run. Immutable and
// thread-safe. A handle that is cheap to copy; copies share the data.
//
//   tr::Graph graph = step.graph(x, y);      // `step` is a tr::function
//   std::cout << graph.explain();            // operators, devices, reasons
//   graph.save("step.graph");                // `trireme graph show step.graph` prints it
class Graph {
 public:
  // Reads a graph that save() has written. The file need not be trusted: everything in it is
  // checked. Throws Error, which names the operator and the argument at fault, or if the file
  // cannot be read.
  static Graph load(const std::string& path);
  // Writes the graph and its constants to a file. Throws Error if the file cannot be written.
  void save(const std::string& path) const;

  // Returns the name of the captured function.
  const std::string& name() const;
  // Returns the number of operators.
  size_t size() const;

  // Returns a table for people: for each operator its arguments and results, the device it runs on
  // and why, the operator whose gradient it computes, and the variables it writes.
  std::string explain() const;
  // Returns a drawing of the graph in Graphviz's DOT language.
  std::string dot() const;

 private:
  friend struct internal::Access<Graph>;
  explicit Graph(std::shared_ptr<const internal::Plan> plan);

  std::shared_ptr<const internal::Plan> plan_;
};

// Prints graph.explain().
std::ostream& operator<<(std::ostream& out, const Graph& graph);

template <>
struct internal::Access<Graph> {
  static Graph make(std::shared_ptr<const Plan> plan) { return Graph(std::move(plan)); }
  // Returns the form in which the graph runs.
  static const std::shared_ptr<const Plan>& plan(const Graph& graph) { return graph.plan_; }
};

}  // namespace trireme
