#include "trireme/ps/layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme {

std::vector<int64_t> VariableLayout::shard_sizes(const Shard& shard) const {
  std::vector<int64_t> result = sizes;
  if (!result.empty()) result[0] = shard.rows.count;
  return result;
}

int64_t VariableLayout::shard_bytes(const Shard& shard) const {
  int64_t bytes = c10::elementSize(dtype);
  for (int64_t size : shard_sizes(shard)) bytes *= size;
  return bytes;
}

ShardPlacer::ShardPlacer(int servers, Placement placement, Partitioner partitioner)
    : placement_(placement), partitioner_(std::move(partitioner)), bytes_(servers, 0) {
  if (servers < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "there are no servers to place variables on; the cluster needs ps tasks");
  }
}

VariableLayout ShardPlacer::cut(const VariableSpec& variable) const {
  const int64_t rows = variable.sizes.empty() ? 1 : variable.sizes[0];
  const int64_t asked =
      partitioner_ && !variable.server ? partitioner_(variable.sizes, variable.dtype) : 1;
  if (asked < 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        absl::StrCat("the partitioner returned ", asked, " shards; it must return at least 1"),
        {"", "variable '" + variable.name + "'"});
  }
  // A row is never cut, and a scalar or an empty variable has one shard.
  const int64_t shards = variable.sizes.empty() ? 1 : std::min(asked, std::max<int64_t>(rows, 1));
  VariableLayout layout{variable.name, variable.sizes, variable.dtype, {}};
  for (const RowRange& range : split_rows(rows, shards)) {
    const std::string name =
        shards == 1 ? variable.name : absl::StrCat(variable.name, "/part_", layout.shards.size());
    layout.shards.push_back({name, variable.server.value_or(0), range});
  }
  return layout;
}

std::vector<VariableLayout> ShardPlacer::place(const std::vector<VariableSpec>& variables) {
  std::vector<VariableLayout> layouts;
  std::vector<std::pair<VariableLayout*, VariableLayout::Shard*>> shards;
  for (const VariableSpec& variable : variables) layouts.push_back(cut(variable));
  const auto bytes = [](const auto& shard) { return shard.first->shard_bytes(*shard.second); };
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (VariableLayout::Shard& shard : layouts[i].shards) {
      if (variables[i].server) {
        bytes_.at(*variables[i].server) += layouts[i].shard_bytes(shard);
      } else {
        shards.push_back({&layouts[i], &shard});
      }
    }
  }
  // Largest first: the small shards then even out the differences that large ones leave. Stable, so
  // that all programs place shards of equal size alike.
  if (placement_ == Placement::kBalanced) {
    std::stable_sort(shards.begin(), shards.end(),
                     [&](const auto& a, const auto& b) { return bytes(a) > bytes(b); });
  }
  for (const auto& shard : shards) {
    int server = next_;
    if (placement_ == Placement::kBalanced) {
      server = std::min_element(bytes_.begin(), bytes_.end()) - bytes_.begin();
    } else {
      next_ = (next_ + 1) % bytes_.size();
    }
    shard.second->server = server;
    bytes_[server] += bytes(shard);
  }
  return layouts;
}

}  // namespace trireme
