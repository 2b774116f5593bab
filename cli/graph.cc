// `trireme graph show`: what a captured function does, from its file. `trireme graph operators`:
// what it may consist of.
#include "trireme/graph/graph.h"

#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "trireme/graph/operators.h"
#include "trireme/optim/row_updates.h"

namespace trireme {

void add_graph_command(CLI::App& app, Invocation& invocation) {
  CLI::App* graph = app.add_subcommand("graph", "Shows captured functions");
  graph->require_subcommand(1);
  CLI::App* show = graph->add_subcommand("show",
                                         "The operators of a graph file, checked as a "
                                         "server checks them");
  struct Options {
    std::string file;
    bool dot = false;
  };
  auto options = std::make_shared<Options>();
  show->add_option("FILE", options->file, "Written by Graph::save")->required();
  show->add_flag("--dot", options->dot, "A picture in Graphviz's language instead of a table");
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
      "operators", "The full names of all operators that a captured function may consist of");
  operators->callback([&invocation] {
    invocation.run = [] {
      internal::register_row_updates();
      for (const std::string& name : internal::allowed_operators()) std::puts(name.c_str());
      return 0;
    };
  });
}

}  // namespace trireme
