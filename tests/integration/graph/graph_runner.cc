// The second process of models_test: runs a graph from a file without the program from which it was
// captured.
//
//   graph_runner GRAPH STATE STEPS SEED RESULT
//
// STATE holds the initial variables, in the order of the graph, and then the inputs of each step,
// as one list of the tensor codec. RESULT gets the outputs of each step and then the variables.
#include <cstdio>
#include <cstdlib>

#include "trireme/base/status.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"
#include "trireme/graph/graph.h"
#include "trireme/graph/graph_file.h"
#include "trireme/optim/row_updates.h"
#include "trireme/tensor/codec.h"

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc != 6) return 2;
  try {
    internal::register_row_updates();
    const Graph graph = Graph::load(argv[1]);
    std::vector<at::Tensor> state =
        value_or_throw(decode_tensors(value_or_throw(internal::read_file(argv[2]))));
    const internal::Plan& plan = *internal::Access<Graph>::plan(graph);
    const size_t variable_count = plan.variable_values.size(), inputs = plan.input_values.size();
    std::vector<at::Tensor> variables(state.begin(), state.begin() + variable_count), results;
    for (int step = 0; step < std::atoi(argv[3]); ++step) {
      const auto first = state.begin() + variable_count + step * inputs;
      const std::vector<at::Tensor> outputs = value_or_throw(internal::replay(
          plan, {first, first + inputs}, variables,
          internal::make_step_generator(std::strtoull(argv[4], nullptr, 10), step)));
      results.insert(results.end(), outputs.begin(), outputs.end());
    }
    results.insert(results.end(), variables.begin(), variables.end());
    throw_if_error(internal::write_file(argv[5], value_or_throw(encode_tensors(results))));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "graph_runner: %s\n", error.what());
    return 1;
  }
  return 0;
}
