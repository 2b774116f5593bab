#include "trireme/collective/reduction_buckets.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/collective/step_reductions.h"
#include "trireme/function/worker_values.h"
#include "trireme/graph/graph_builder.h"
#include "trireme/placement/forward_numbers.h"
#include "trireme/placement/memory_use.h"
#include "trireme/placement/tensor_bytes.h"

namespace trireme::internal {
namespace {

// Communicators reduce memory of the host, so that their calls run there on every worker. The
// placement of the step adds the moves from accelerators and back.
constexpr char kReducingDevice[] = "/cpu:0";

// Sums that are made together.
struct SumBucket {
  std::vector<int> nodes;  // the nodes that ask for them, in the order of the bucket
  int32_t dtype = 0;
  int64_t wire = -1;  // dtype on the way; -1 for `dtype`
  int64_t bytes = 0;
};

bool is_sum(const proto::Node& node) {
  return node.op() == kSumOverWorkers || node.op() == kSumGradients;
}

class ReductionRewriter {
 public:
  ReductionRewriter(const Plan& plan, const ReductionOptions& options)
      : old_(plan.graph->def),
        options_(options),
        memory_(plan, 0),
        new_(std::make_shared<GraphData>(*plan.graph)),
        makers_(old_.values_size(), -1) {
    new_->def.clear_nodes();
  }

  std::shared_ptr<const GraphData> rewrite() {
    for (int i = 0; i < old_.nodes_size();) {
      const int end = end_of_sums(i);
      if (end > i) plan_buckets(i, end);
      for (const int next = std::max(end, i + 1); i < next; ++i) note_changes(i);
    }
    start_ready(-1);
    for (int i = 0; i < old_.nodes_size(); ++i) {
      emit(i);
      places_.push_back(static_cast<uint32_t>(new_->def.nodes_size()));
      start_ready(i);
    }
    renumber_forward(places_, new_->def);
    return new_;
  }

 private:
  static int64_t input_of(const proto::Node& node) { return node.arguments(0).value(); }
  static int64_t result_of(const proto::Node& node) { return node.results(0).value(); }
  const proto::TensorType& type_of(int64_t value) const { return old_.values(value).type(); }
  bool is_dense_sum(const proto::Node& node) const {
    return is_sum(node) && !type_of(input_of(node)).sparse() &&
           node.results(0).kind_case() == proto::Argument::kValue;
  }

  // Returns the dtype in which a sum is sent, or -1 for its own.
  int64_t wire_of(const proto::Node& node) const {
    const auto dtype = static_cast<c10::ScalarType>(type_of(input_of(node)).dtype());
    const bool shrinks =
        node.op() == kSumGradients && options_.wire_dtype && c10::isFloatingType(dtype);
    return shrinks ? static_cast<int64_t>(*options_.wire_dtype) : -1;
  }

  // Takes note of the values that a node makes, and of the memory that it writes to.
  void note_changes(int index) {
    const proto::Node& node = old_.nodes(index);
    for (const auto& result : node.results()) {
      for_each_value(result, [&](int64_t value) { makers_[value] = index; });
    }
    for (int argument : memory_.written_by(index)) {
      for_each_value(node.arguments(argument),
                     [&](int64_t value) { writers_[memory_.storage(value)] = index; });
    }
  }

  // Returns the node after which the contents of a value are final, as far as the nodes that were
  // noted show; -1 if none changes them. A gradient that has several parts is made by the first and
  // added to in place, by operators that have no result.
  int final_after(int64_t value) const {
    const auto writer = writers_.find(memory_.storage(value));
    return std::max(makers_[value], writer == writers_.end() ? -1 : writer->second);
  }

  // Returns the end of the sums that begin at a node and do not use each other.
  int end_of_sums(int begin) const {
    std::set<int64_t> made;
    int end = begin;
    for (; end < old_.nodes_size() && is_dense_sum(old_.nodes(end)); ++end) {
      if (made.contains(input_of(old_.nodes(end)))) break;
      made.insert(result_of(old_.nodes(end)));
    }
    return end;
  }

  void plan_buckets(int begin, int end) {
    std::map<std::pair<int32_t, int64_t>, SumBucket> open;  // by dtype, and dtype on the way
    std::vector<SumBucket> full;
    for (int i = end - 1; i >= begin; --i) {
      const proto::TensorType& type = type_of(input_of(old_.nodes(i)));
      const int64_t wire = wire_of(old_.nodes(i));
      SumBucket& bucket = open[{type.dtype(), wire}];
      bucket.dtype = type.dtype();
      bucket.wire = wire;
      bucket.nodes.push_back(i);
      bucket.bytes += tensor_bytes(type);
      if (bucket.bytes >= options_.bucket_bytes) full.push_back(std::exchange(bucket, {}));
    }
    for (auto& [dtypes, bucket] : open) {
      if (!bucket.nodes.empty()) full.push_back(std::move(bucket));
    }
    for (SumBucket& bucket : full) {
      int ready = -1;
      for (int node : bucket.nodes)
        ready = std::max(ready, final_after(input_of(old_.nodes(node))));
      const size_t index = buckets_.size();
      starts_[ready].push_back(index);
      finishes_[begin].push_back(index);
      for (int node : bucket.nodes) replaced_.insert(node);
      buckets_.push_back(std::move(bucket));
      values_.push_back(-1);
    }
  }

  void emit(int index) {
    const auto finished = finishes_.find(index);
    if (finished != finishes_.end()) {
      for (size_t bucket : finished->second) finish(bucket);
    }
    const proto::Node& node = old_.nodes(index);
    if (replaced_.contains(index)) return;
    if (is_sum(node)) {
      emit_single(node, kSumSparse, "sum");
    } else if (node.op() == kFirstOfWorkers) {
      emit_single(node, kFirstOfRanks, "first");
    } else {
      *new_->def.add_nodes() = node;
    }
  }

  // Adds the argument that keeps the order of the communicator's calls.
  void add_order(proto::Node& node) const {
    if (last_call_ < 0) {
      node.add_arguments()->set_none(true);
    } else {
      node.add_arguments()->set_value(static_cast<uint32_t>(last_call_));
    }
  }

  std::string next_tag(const char* what) {
    return absl::StrCat(old_.name(), ": ", what, " ", ++calls_);
  }

  void emit_single(const proto::Node& node, const char* op, const char* what) {
    proto::Node call = node;
    call.set_op(op);
    call.set_device(kReducingDevice);
    add_order(call);
    call.add_arguments()->set_integer(options_.communicator);
    call.add_arguments()->set_text(next_tag(what));
    last_call_ = result_of(node);
    *new_->def.add_nodes() = std::move(call);
  }

  void start_ready(int after) {
    const auto ready = starts_.find(after);
    if (ready == starts_.end()) return;
    for (size_t bucket : ready->second) start(bucket);
  }

  void start(size_t index) {
    const SumBucket& bucket = buckets_[index];
    proto::Node& node = *new_->def.add_nodes();
    node.set_op(kStartSum);
    node.set_device(kReducingDevice);
    node.set_scope(old_.nodes(bucket.nodes[0]).scope());
    proto::Values& values = *node.add_arguments()->mutable_values();
    int64_t elements = 0;
    for (int sum : bucket.nodes) {
      values.add_ids(input_of(old_.nodes(sum)));
      elements += element_count(type_of(input_of(old_.nodes(sum))));
    }
    add_order(node);
    node.add_arguments()->set_integer(options_.communicator);
    node.add_arguments()->set_integer(bucket.wire);
    node.add_arguments()->set_text(next_tag("bucket"));
    proto::Value& value = *new_->def.add_values();
    value.mutable_type()->set_dtype(bucket.wire < 0 ? bucket.dtype
                                                    : static_cast<int32_t>(bucket.wire));
    value.mutable_type()->add_sizes(elements);
    value.mutable_type()->add_strides(1);
    values_[index] = new_->def.values_size() - 1;
    node.add_results()->set_value(static_cast<uint32_t>(values_[index]));
    last_call_ = values_[index];
  }

  void finish(size_t index) {
    const SumBucket& bucket = buckets_[index];
    proto::Node& node = *new_->def.add_nodes();
    node.set_op(kFinishSum);
    node.set_device(kReducingDevice);
    node.set_scope(old_.nodes(bucket.nodes[0]).scope());
    node.add_arguments()->set_value(static_cast<uint32_t>(values_[index]));
    proto::Integers& sizes = *node.add_arguments()->mutable_integers();
    proto::Values& results = *node.add_results()->mutable_values();
    for (int sum : bucket.nodes) {
      const proto::TensorType& type = type_of(result_of(old_.nodes(sum)));
      sizes.add_items(type.sizes_size());
      for (int64_t size : type.sizes()) sizes.add_items(size);
      results.add_ids(result_of(old_.nodes(sum)));
    }
    node.add_arguments()->set_integer(bucket.dtype);
    node.add_arguments()->set_integer(options_.communicator);
  }

  const proto::GraphDef& old_;
  const ReductionOptions& options_;
  const MemoryUse memory_;
  const std::shared_ptr<GraphData> new_;
  std::vector<int> makers_;          // node that makes each value; -1 for none so far
  std::map<uint32_t, int> writers_;  // last node so far that writes to each storage
  std::vector<uint32_t> places_;     // 1 + the new number of each node
  std::vector<SumBucket> buckets_;
  std::vector<int64_t> values_;                  // value of each bucket that was started
  std::map<int, std::vector<size_t>> starts_;    // buckets to start after a node
  std::map<int, std::vector<size_t>> finishes_;  // buckets to finish before a node
  std::set<int> replaced_;
  int64_t last_call_ = -1;  // value of the last call of the communicator
  int calls_ = 0;
};

}  // namespace

std::shared_ptr<const GraphData> reduce_over_ranks(const Plan& plan,
                                                   const ReductionOptions& options) {
  if (!combines_over_workers(*plan.graph)) return plan.graph;
  return ReductionRewriter(plan, options).rewrite();
}

}  // namespace trireme::internal
