// Tests that gradients of tables stay rows, whatever a step does to them before it pushes them: the
// result is that of the whole gradient on the rows that the step looked up, other rows stay as they
// are, and no tensor of the table's size is pushed.
#include "trireme/ps/row_gradients.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "trireme/function/function.h"
#include "trireme/function/replicas.h"
#include "trireme/function/variable.h"
#include "trireme/optim/clipping.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/ps/test_servers.h"
#include "trireme/testing/relative_distance.h"

namespace trireme {
namespace {

using torch::Tensor;

constexpr int64_t kTableRows = 2000, kRowWidth = 8;
// Limit for the bytes that a step pushes for a batch of rows. The whole table has 64,000.
constexpr uint64_t kFewBytes = 8000;

// Returns ids of which some repeat. The first and the last row are among them, so that each shard
// is updated in each step.
Tensor batch_of_ids(int step) {
  torch::manual_seed(step);
  Tensor ids = torch::randint(0, kTableRows, {3, 5});
  ids[1].copy_(ids[0]);
  ids[2][0] = 0;
  ids[2][1] = kTableRows - 1;
  return ids;
}

Tensor lookup(const Tensor& table, const Tensor& ids, int64_t padding = -1) {
  return torch::embedding(table, ids, padding);
}

Tensor gradient_of(const Tensor& loss, const Tensor& table) {
  return torch::autograd::grad({loss}, {table})[0];
}

// Returns the gradient of a table of which rows were looked up.
Tensor simple_gradient(const Tensor& table, const Tensor& ids) {
  return gradient_of(lookup(table, ids).pow(2).sum(), table);
}

class RowGradientsTest : public testing::Test {
 protected:
  using GradientOf = std::function<Tensor(const Tensor& table, const Tensor& ids)>;
  using Train = std::function<void(const Optimizer&, const Tensor& table, const Tensor& ids)>;

  uint64_t pushed_bytes() const {
    uint64_t sum = 0;
    for (int i = 0; i < 2; ++i) {
      sum +=
          cluster_.context(i).metrics.counters().at("rpc_server/trireme.Variables/Push/bytes_in");
    }
    return sum;
  }

  // Makes a variable on the servers.
  Variable on_servers(const std::string& name, const Tensor& initial) const {
    const auto scope = servers_.scope();
    return Variable(name, initial);
  }

  // Trains one table on the servers, with a step that computes the whole gradient, and one in the
  // program, with those rows of the whole gradient that are not zero. Expects equal tables, and
  // that the step changes and pushes these rows only.
  void expect_rows(const GradientOf& gradient, AdamOptions options = {.lr = 0.1}) {
    expect_rows(
        gradient,
        [gradient](const Optimizer& optimizer, const Tensor& table, const Tensor& ids) {
          optimizer.apply_gradients({gradient(table, ids)});
        },
        options);
  }
  // Does the same with a step that trains in its own way.
  void expect_rows(const GradientOf& gradient, const Train& train,
                   AdamOptions options = {.lr = 0.1}) {
    torch::manual_seed(100);
    const Tensor start = torch::randn({kTableRows, kRowWidth});
    const Variable here("here", start), there = on_servers("there", start);
    const Adam local({here}, options), remote({there}, options);
    const auto step =
        function("step", [&](const Tensor& ids) { train(remote, there.read(), ids); });
    Tensor touched = torch::zeros({kTableRows}, torch::kBool);
    for (int i = 0; i < 5; ++i) {
      const Tensor ids = batch_of_ids(i), whole = gradient(here.read(), ids).detach();
      const Tensor rows = whole.abs().sum(1).nonzero().select(1, 0);
      touched.index_fill_(0, rows, true);
      local.apply_gradients({torch::sparse_coo_tensor(rows.unsqueeze(0),
                                                      whole.index_select(0, rows), whole.sizes())});
      const uint64_t before = pushed_bytes();
      step(ids);
      EXPECT_LT(pushed_bytes() - before, kFewBytes) << "step " << i;
    }
    const Tensor trained = there.read();
    EXPECT_LT(relative_distance(trained, here.read().detach()), 1e-6);
    const Tensor others = touched.logical_not().nonzero().select(1, 0);
    EXPECT_TRUE(trained.index_select(0, others).equal(start.index_select(0, others)));
  }

  TestServers cluster_{2};
  ParameterServers servers_{
      cluster_.spec(), {.partitioner = FixedPartitioner(2), .placement = Placement::kBalanced}};
};

TEST_F(RowGradientsTest, ClipNormTrainsAsAReferenceByRows) {
  torch::manual_seed(100);
  const Tensor start = torch::randn({kTableRows, kRowWidth}), weights = torch::randn({kRowWidth});
  const Variable table = on_servers("table", start), w = on_servers("w", weights);
  const Adam optimizer({table, w}, {.lr = 0.05});
  const auto step = function("step", [&](const Tensor& ids) {
    const Tensor loss = (lookup(table.read(), ids) * w.read()).pow(2).sum();
    optimizer.minimize(loss, {.clip_norm = 0.5});
    return loss;
  });
  // Adam on the looked-up rows and on w, in float64, with gradients clipped to the norm of both.
  struct Reference {
    Tensor value, mean = torch::zeros_like(value), square = torch::zeros_like(value);
    void update(const Tensor& gradient, const Tensor& rows, int step) {
      const Tensor g = gradient.index_select(0, rows);
      const Tensor m = mean.index_select(0, rows) * 0.9 + g * 0.1;
      const Tensor v = square.index_select(0, rows) * 0.999 + g * g * 0.001;
      mean.index_copy_(0, rows, m);
      square.index_copy_(0, rows, v);
      const Tensor root = (v / (1 - std::pow(0.999, step))).sqrt() + 1e-8;
      value.index_add_(0, rows, m / (1 - std::pow(0.9, step)) / root, -0.05);
    }
  };
  Reference table_of{start.to(torch::kDouble)}, w_of{weights.to(torch::kDouble)};
  std::set<int64_t> touched;
  for (int i = 1; i <= 10; ++i) {
    const Tensor ids = batch_of_ids(i);
    const Tensor t = table_of.value.clone().requires_grad_(true),
                 u = w_of.value.clone().requires_grad_(true);
    const Tensor loss = (lookup(t, ids) * u).pow(2).sum();
    const auto gradients = torch::autograd::grad({loss}, {t, u});
    const double norm =
        std::hypot(gradients[0].norm().item<double>(), gradients[1].norm().item<double>());
    const double scale = std::min(1.0, 0.5 / (norm + 1e-6));
    const Tensor rows = std::get<0>(torch::_unique(ids));
    for (int64_t k = 0; k < rows.numel(); ++k) touched.insert(rows[k].item<int64_t>());
    table_of.update(gradients[0] * scale, rows, i);
    w_of.update(gradients[1] * scale, torch::arange(kRowWidth), i);
    const uint64_t before = pushed_bytes();
    EXPECT_LT(relative_distance(step(ids), loss.detach()), 1e-5);
    EXPECT_LT(pushed_bytes() - before, kFewBytes);
  }
  const Tensor trained = table.read();
  EXPECT_LT(relative_distance(trained, table_of.value), 1e-6);
  EXPECT_LT(relative_distance(w.read(), w_of.value), 1e-5);
  for (int64_t row = 0; row < kTableRows; ++row) {
    if (touched.contains(row)) continue;
    ASSERT_TRUE(trained[row].equal(start[row])) << row;
  }
}

TEST_F(RowGradientsTest, ClippingKeepsRows) {
  expect_rows([](const Tensor& table, const Tensor& ids) {
    std::vector<Tensor> gradients{simple_gradient(table, ids), lookup(table, ids).sum({0, 1})};
    clip_grad_norm(gradients, 0.5);
    return gradients[0];
  });
  expect_rows([](const Tensor& table, const Tensor& ids) {
    std::vector<Tensor> gradients{simple_gradient(table, ids), Tensor()};
    clip_each_grad_norm(gradients, 0.5);
    return gradients[0];
  });
  expect_rows([](const Tensor& table, const Tensor& ids) {
    std::vector<Tensor> gradients{simple_gradient(table, ids)};
    clip_grad_value(gradients, 0.3);
    return gradients[0];
  });
}

TEST_F(RowGradientsTest, NormsOfAllKindsKeepRows) {
  expect_rows([](const Tensor& table, const Tensor& ids) {
    const Tensor g = simple_gradient(table, ids);
    const Tensor norms = g.norm() + torch::linalg_vector_norm(g, 1) + g.pow(2).sum().sqrt() +
                         g.abs().sum() + (g * g).sum() +
                         g.norm(3, torch::kDouble).to(torch::kFloat);
    return g / norms;
  });
}

TEST_F(RowGradientsTest, ScalingKeepsRows) {
  const Variable factor = on_servers("factor", torch::full({}, 0.25));
  expect_rows([&](const Tensor& table, const Tensor& ids) {
    return factor.read() * simple_gradient(table, ids);
  });
  const Tensor columns = torch::arange(1, kRowWidth + 1, torch::kFloat);
  expect_rows([&](const Tensor& table, const Tensor& ids) {
    return -(simple_gradient(table, ids) * columns / 3);
  });
}

TEST_F(RowGradientsTest, SumsKeepRows) {
  const auto other_gradient = [](const Tensor& table, const Tensor& ids) {
    return gradient_of((lookup(table, ids.flip(0)) * lookup(table, (ids + 3) % kTableRows)).sum(),
                       table);
  };
  expect_rows([&](const Tensor& table, const Tensor& ids) {
    const Tensor a = simple_gradient(table, ids), b = other_gradient(table, ids);
    return a.sub(b, 0.5).add(a, 2) / (a.norm() + b.norm());
  });
  expect_rows([&](const Tensor& table, const Tensor& ids) {
    Tensor sum = simple_gradient(table, ids) + other_gradient(table, ids);
    for (int i = 0; i < 8; ++i) sum = sum + sum;  // 256 times the gradient
    return sum / 256;
  });
}

TEST_F(RowGradientsTest, WritingToAGradientKeepsRows) {
  expect_rows([](const Tensor& table, const Tensor& ids) {
    Tensor g = simple_gradient(table, ids);
    const Tensor before = g * 1;
    g.mul_(2).clamp_(-1, 1);
    g.add_(before, 0.5).neg_();
    return g;
  });
  expect_rows([](const Tensor& table, const Tensor& ids) {
    std::vector<Tensor> mixed{simple_gradient(table, ids), torch::ones({4}) + ids.sum()};
    at::_foreach_mul_(mixed, 0.5);
    const std::vector<Tensor> scaled = at::_foreach_div(mixed, mixed[1].sum());
    return at::_foreach_neg(scaled)[0];
  });
}

TEST_F(RowGradientsTest, RowsThatAreOverwrittenLaterArePushedAsTheyWere) {
  expect_rows([](const Tensor& table, const Tensor& ids) {
    Tensor mine = ids + 0, rows = lookup(table, mine).detach() * 2;
    const Tensor g = at::embedding_dense_backward(rows, mine, kTableRows, -1, false);
    rows.zero_();
    mine.zero_();
    return g;
  });
}

TEST_F(RowGradientsTest, OneTableMayBeLookedUpTwice) {
  expect_rows([](const Tensor& table, const Tensor& ids) {
    const Tensor loss = (lookup(table, ids) * lookup(table, (ids + 7) % kTableRows)).pow(2).sum() +
                        lookup(table, ids[0]).sum();
    std::vector<Tensor> gradients{gradient_of(loss, table)};
    clip_grad_norm(gradients, 0.5);
    return gradients[0];
  });
}

// Id of the padding row in tests that have one.
constexpr int64_t kPadding = 5;

// Returns the ids with a column of padding.
Tensor with_padding(const Tensor& ids) {
  const Tensor columns = torch::arange(ids.size(1));
  return torch::where(columns.eq(2), torch::full_like(ids, kPadding), ids);
}

TEST_F(RowGradientsTest, PaddingHasNoGradient) {
  expect_rows([](const Tensor& table, const Tensor& ids) {
    std::vector<Tensor> gradients{
        gradient_of(lookup(table, with_padding(ids), kPadding).pow(2).sum(), table)};
    clip_grad_norm(gradients, 0.5);
    return gradients[0];
  });
}

TEST_F(RowGradientsTest, IndexSelectKeepsRows) {
  expect_rows([](const Tensor& table, const Tensor& ids) {
    std::vector<Tensor> gradients{
        gradient_of(table.index_select(0, ids.reshape({-1})).pow(2).sum(), table)};
    clip_grad_norm(gradients, 0.5);
    return gradients[0];
  });
}

// Modes of embedding_bag.
constexpr int64_t kBagsOfSums = 0, kBagsOfMeans = 1, kBagsOfMaxima = 2;

// Returns the gradient of an embedding_bag with the bags of 5, 0, 6 and 4 ids.
Tensor bag_gradient(const Tensor& table, const Tensor& ids, int64_t mode,
                    const std::optional<Tensor>& weights, std::optional<int64_t> padding) {
  const Tensor numbers = torch::arange(4);
  const Tensor offsets = numbers.clamp_max(1) * 5 + numbers.eq(3) * 6;  // 0, 5, 5, 11
  const Tensor bags = std::get<0>(
      torch::embedding_bag(table, ids.reshape({-1}), offsets, /*scale_grad_by_freq=*/false, mode,
                           /*sparse=*/false, weights, /*include_last_offset=*/false, padding));
  return gradient_of(bags.pow(2).sum(), table);
}

TEST_F(RowGradientsTest, EmbeddingBagKeepsRows) {
  const Tensor weights = torch::linspace(0.5, 2, 15);
  for (const bool clip : {false, true}) {
    const auto clipped = [clip](const Tensor& gradient) {
      std::vector<Tensor> gradients{gradient};
      if (clip) clip_grad_norm(gradients, 0.5);
      return gradients[0];
    };
    expect_rows([&](const Tensor& table, const Tensor& ids) {
      return clipped(bag_gradient(table, ids, kBagsOfSums, weights, std::nullopt));
    });
    for (const int64_t mode : {kBagsOfSums, kBagsOfMeans}) {
      expect_rows([&](const Tensor& table, const Tensor& ids) {
        return clipped(bag_gradient(table, ids, mode, std::nullopt, std::nullopt));
      });
      expect_rows([&](const Tensor& table, const Tensor& ids) {
        return clipped(bag_gradient(table, with_padding(ids), mode, std::nullopt, kPadding));
      });
    }
  }
}

TEST_F(RowGradientsTest, MaximaOfAnEmbeddingBagHaveAWholeGradient) {
  torch::manual_seed(100);
  const Tensor start = torch::randn({kTableRows, kRowWidth});
  const Variable here("here", start), there = on_servers("there", start);
  const Sgd local({here}, {.lr = 0.1}), remote({there}, {.lr = 0.1});
  const auto gradient = [](const Tensor& table, const Tensor& ids) {
    return bag_gradient(table, ids, kBagsOfMaxima, std::nullopt, std::nullopt);
  };
  const auto step = function(
      "step", [&](const Tensor& ids) { remote.apply_gradients({gradient(there.read(), ids)}); });
  for (int i = 0; i < 5; ++i) {
    local.apply_gradients({gradient(here.read(), batch_of_ids(i))});
    step(batch_of_ids(i));
  }
  EXPECT_LT(relative_distance(there.read(), here.read().detach()), 1e-6);
}

TEST_F(RowGradientsTest, ReplicasPushTheRowsOfTheirSum) {
  expect_rows(
      [](const Tensor& table, const Tensor& ids) {
        std::vector<Tensor> gradients{simple_gradient(table, ids)};
        clip_grad_norm(gradients, 0.5);
        return gradients[0];
      },
      [](const Optimizer& optimizer, const Tensor& table, const Tensor& ids) {
        internal::for_each_replica(3, [&](int replica) {
          optimizer.minimize(lookup(table, ids[replica] + 0).pow(2).sum(), {.clip_norm = 0.5});
        });
      });
}

TEST_F(RowGradientsTest, ReplicasMayClipBeforeTheSum) {
  const auto clipped = [](const Tensor& table, const Tensor& ids) {
    std::vector<Tensor> gradients{simple_gradient(table, ids)};
    clip_grad_norm(gradients, 0.2);
    return gradients[0];
  };
  expect_rows(
      [&](const Tensor& table, const Tensor& ids) {
        return clipped(table, ids[0]) + clipped(table, ids[1]) + clipped(table, ids[2]);
      },
      [&](const Optimizer& optimizer, const Tensor& table, const Tensor& ids) {
        internal::for_each_replica(
            3, [&](int replica) { optimizer.apply_gradients({clipped(table, ids[replica] + 0)}); });
      });
}

TEST_F(RowGradientsTest, WeightDecayDecaysTheRowsOfTheUpdate) {
  expect_rows(
      [](const Tensor& table, const Tensor& ids) {
        std::vector<Tensor> gradients{simple_gradient(table, ids)};
        clip_grad_norm(gradients, 0.5);
        return gradients[0];
      },
      {.lr = 0.1, .weight_decay = 0.1});
}

TEST_F(RowGradientsTest, ATableThatIsReadWholeIsPushedByRows) {
  expect_rows([](const Tensor& table, const Tensor& ids) {
    return simple_gradient(table, ids) / table.detach().norm();
  });
}

TEST_F(RowGradientsTest, BytesFollowTheBatch) {
  constexpr int64_t kRows = 100'000, kWidth = 64, kRowBytes = kWidth * 4 + 8;  // a row and its id
  const Tensor start = torch::zeros({kRows, kWidth});
  const Variable table = on_servers("table", start);
  const Adam optimizer({table}, {.lr = 0.1});
  const auto step = function("step", [&](const Tensor& ids) {
    optimizer.minimize((lookup(table.read(), ids) - 1).pow(2).sum(), {.clip_norm = 1});
  });
  for (const int64_t batch : {16, 256}) {
    const Tensor ids = torch::arange(batch) * (kRows / 256);
    for (const Tensor& given : {ids, torch::cat({ids, ids})}) {
      step(given);
      const uint64_t before = pushed_bytes();
      step(given);
      const uint64_t bytes = pushed_bytes() - before;
      EXPECT_GE(bytes, static_cast<uint64_t>(batch * kRowBytes));
      EXPECT_LT(bytes, static_cast<uint64_t>(batch * kRowBytes + 2000));
    }
  }
  const Tensor changed = table.read().abs().sum(1).nonzero().select(1, 0);
  EXPECT_EQ(changed.numel(), 256);  // the ids of the small batch are in the large one
}

}  // namespace
}  // namespace trireme
