// `trireme graph show` prints the operators of a captured function from its file. `trireme graph
// operators` prints the operators that captured functions may use.
#include "trireme/graph/graph.h"

#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "trireme/graph/operators.h"
#include "trireme/optim/row_updates.h"

namespace trireme {
namespace {

constexpr char kGraphFooter[] = R"(
Examples:
  trireme graph show step.graph               the operators of a function that Graph::save() wrote
  trireme graph show step.graph --dot | dot -Tsvg -o step.svg
  trireme graph operators                     all operators that captured functions may use)";

}  // namespace

void add_graph_command(CLI::App& app, Invocation& invocation) {
  CLI::App* graph = app.add_subcommand("graph", "Show captured functions");
  graph->require_subcommand(1);
  graph->footer(kGraphFooter);
  CLI::App* show = graph->add_subcommand("show",
                                         "Check a graph file as a server does, and show its "
                                         "operators");
  struct Options {
    std::string file;
    bool dot = false;
  };
  auto options = std::make_shared<Options>();
  show->add_option("FILE", options->file, "A file written by Graph::save")->required();
  show->add_flag("--dot", options->dot, "Print a graph for Graphviz instead of a table");
  show->callback([options, &invocation] {
    invocation.run = [options] {
      try {
        internal::register_row_updates();
        const Graph graph = Graph::load(options->file);
        std::fputs((options->dot ? graph.dot() : graph.explain()).c_str(), stdout);
        return 0;
      } catch (const Error& error) {
        say(text_of(error));
        return exit_code_of(error);
      }
    };
  });
  CLI::App* operators = graph->add_subcommand(
      "operators", "List the full names of all operators that a captured function may use");
  operators->callback([&invocation] {
    invocation.run = [] {
      internal::register_row_updates();
      for (const std::string& name : internal::allowed_operators()) std::puts(name.c_str());
      return 0;
    };
  });
}

}  // namespace trireme
