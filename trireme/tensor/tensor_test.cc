#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "trireme/base/status.h"
#include "trireme/tensor/buffer_pool.h"
#include "trireme/tensor/codec.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/stream_copy.h"
#include "trireme/testing/manual_clock.h"

namespace trireme {
namespace {

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         (left.nbytes() == 0 ||
          std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

std::vector<at::Tensor> round_trip(const std::vector<at::Tensor>& tensors) {
  return value_or_throw(decode_tensors(value_or_throw(encode_tensors(tensors))));
}

TEST(Codec, CarriesEveryDtypeThatHasAWireCode) {
  int tested = 0;
  for (int code = 0; code < 256; ++code) {
    const auto dtype = dtype_from_wire(code);
    if (!dtype.ok()) continue;
    ++tested;
    const at::Tensor bytes = at::randint(0, 2, {24 * 16}, at::kByte);
    at::Tensor tensor = BufferPool::shared().empty({2, 3, 4}, *dtype);
    std::memcpy(tensor.data_ptr(), bytes.data_ptr(), tensor.nbytes());
    const at::Tensor received = round_trip({tensor}).at(0);
    EXPECT_TRUE(same_bytes(received, tensor)) << dtype_name(*dtype);
    EXPECT_EQ(*dtype_to_wire(*dtype), code);
  }
  EXPECT_EQ(tested, 27);
}

TEST(Codec, CarriesEmptyAndScalarAndNonContiguousTensors) {
  const at::Tensor grid = at::arange(24, at::kFloat).reshape({2, 3, 4});
  const std::vector<at::Tensor> tensors = {
      at::scalar_tensor(7, at::kLong),
      at::empty({0}),
      at::empty({3, 0, 2}, at::kDouble),
      grid.transpose(0, 2),
      grid.slice(2, 1, 4, 2),
      grid.select(1, 1).expand({5, 2, 4}),
      at::empty({0, int64_t{1} << 30}),
      at::complex(grid, grid).conj(),
  };
  const std::vector<at::Tensor> received = round_trip(tensors);
  ASSERT_EQ(received.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(received[i].sizes(), tensors[i].sizes()) << i;
    EXPECT_TRUE(at::equal(received[i], tensors[i].resolve_conj())) << i;
  }
  EXPECT_TRUE(round_trip({}).empty());
}

TEST(Codec, SendsTheTensorsOwnMemory) {
  const at::Tensor tensor = at::rand({64});
  EXPECT_EQ(value_or_throw(prepare_to_send(tensor)).const_data_ptr(), tensor.const_data_ptr());
}

TEST(Codec, RejectsTensorsWithoutPlainBytes) {
  EXPECT_EQ(describe(prepare_to_send(at::Tensor()).status()), "an undefined tensor cannot be sent");
  EXPECT_EQ(describe(prepare_to_send(at::eye(3).to_sparse()).status()),
            "a sparse tensor cannot be sent as one; send its indices and values");
  EXPECT_EQ(
      describe(
          prepare_to_send(at::quantize_per_tensor(at::rand({4}), 0.1, 0, at::kQInt8)).status()),
      "a tensor of dtype QInt8 cannot be sent; send its int_repr() or dequantize() it");
}

TEST(Codec, ReadsBytesInPiecesOfAnySize) {
  const std::vector<at::Tensor> tensors = {at::rand({17, 3}), at::empty({0}), at::rand({}),
                                           at::rand({1000}, at::kDouble)};
  const std::string bytes = value_or_throw(encode_tensors(tensors));
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    TensorReader reader({});
    size_t offset = 0;
    while (!reader.done()) {
      const size_t piece = std::min<size_t>(1 + random() % (1 + round * 10), bytes.size() - offset);
      offset += value_or_throw(
          reader.read(reinterpret_cast<const uint8_t*>(bytes.data()) + offset, piece));
    }
    EXPECT_EQ(offset, bytes.size());
    const std::vector<at::Tensor> received = reader.take();
    ASSERT_EQ(received.size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(same_bytes(received[i], tensors[i]));
  }
}

TEST(Codec, LeavesLargeTensorsInTheirPieces) {
  const std::vector<at::Tensor> tensors = {at::rand({3}), at::rand({17, 3}), at::rand({2}),
                                           at::rand({1000}), at::rand({50}, at::kDouble)};
  const std::string bytes = value_or_throw(encode_tensors(tensors));
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto owner = std::make_shared<int>();
  {
    TensorReader reader({});
    reader.scatter_from(100);
    for (size_t offset = 0; offset < bytes.size();) {
      const size_t piece = std::min<size_t>(7, bytes.size() - offset);
      offset += value_or_throw(reader.read(data + offset, piece, owner));
    }
    ASSERT_TRUE(reader.done());
    const std::vector<at::Tensor> received = reader.take();
    const std::vector<ScatteredTensor> scattered = reader.take_scattered();
    ASSERT_EQ(scattered.size(), 5u);
    EXPECT_GT(owner.use_count(), 1);
    for (size_t i = 0; i < tensors.size(); ++i) {
      // The largest tensor has too many small pieces, so it was copied.
      const bool large = tensors[i].nbytes() >= 100 && tensors[i].numel() < 1000;
      ASSERT_EQ(received[i].is_meta(), large);
      at::Tensor gathered = received[i];
      if (large) {
        EXPECT_GT(scattered[i].pieces().size(), 10u);
        gathered = scattered[i].gather(received[i].sizes(), received[i].scalar_type());
      }
      EXPECT_TRUE(same_bytes(gathered, tensors[i])) << i;
    }
  }
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(StreamCopy, CopiesAnySizeFromAndToAnyAddress) {
  std::string from(1000, 0);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7);
  for (const size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 300, 700}) {
    for (size_t offset = 0; offset < 70; offset += 3) {
      std::string to(1000, 'x'), expected = to;
      stream_copy(to.data() + offset, from.data() + offset / 2, bytes);
      std::memcpy(expected.data() + offset, from.data() + offset / 2, bytes);
      EXPECT_EQ(to, expected) << bytes << " bytes to " << offset;
    }
  }
}

std::string table(uint32_t count, uint8_t dtype, std::vector<int64_t> sizes) {
  std::string bytes(reinterpret_cast<const char*>(&count), 4);
  bytes += std::string{static_cast<char>(dtype), static_cast<char>(sizes.size()), 0, 0};
  bytes.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * 8);
  return bytes;
}

std::string refusal(const std::string& bytes, const TensorLimits& limits = {}) {
  return describe(decode_tensors(bytes, limits).status());
}

TEST(Codec, RejectsABadTableBeforeItAllocates) {
  constexpr uint8_t kFloat = 12;
  EXPECT_EQ(refusal(table(1'000'000'000, kFloat, {1})),
            "refused: the number of tensors is 1000000000, the limit is 131072");
  EXPECT_EQ(refusal(table(1, kFloat, {int64_t{1} << 40}), {.max_bytes = 1 << 20}),
            "refused: a tensor of shape [1099511627776] and dtype float32 exceeds the limit of "
            "1048576 bytes");
  const auto code = [](const std::string& bytes) {
    return error_code(decode_tensors(bytes, {.max_bytes = 1 << 20}).status());
  };
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(code(table(1, kFloat, {huge, huge, huge})), ErrorCode::kResourceExhausted);
  EXPECT_EQ(code(table(1, kFloat, {huge, huge, 0})), ErrorCode::kResourceExhausted);
  EXPECT_EQ(code(table(1, kFloat, {-1})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(table(1, 0, {1})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(table(1, kFloat, std::vector<int64_t>(65, 1))), ErrorCode::kResourceExhausted);
  EXPECT_EQ(refusal(table(1, kFloat, {1})),
            "malformed tensors: the bytes end before the last tensor is complete");
  EXPECT_EQ(refusal(table(1, kFloat, {0}) + "xx"), "malformed tensors: 2 bytes too many");
}

TEST(BufferPool, ReusesLargeBlocks) {
  BufferPool pool(8 << 20);
  const void* first = nullptr;
  {
    bool reused = true;
    const at::Tensor tensor = pool.empty({1 << 20}, at::kFloat, &reused);
    EXPECT_FALSE(reused);
    first = tensor.const_data_ptr();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % (2 << 20), 0u) << "not aligned for huge pages";
    EXPECT_EQ(pool.idle_bytes(), 0u);
  }
  EXPECT_EQ(pool.idle_bytes(), size_t{4} << 20);
  bool reused = false;
  EXPECT_EQ(pool.empty({1 << 20}, at::kFloat, &reused).const_data_ptr(), first);
  EXPECT_TRUE(reused);
}

TEST(BufferPool, KeepsNoMoreThanItsCapacity) {
  BufferPool pool(8 << 20);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 10; ++i) tensors.push_back(pool.empty({1 << 20}, at::kFloat));
  tensors.clear();
  EXPECT_EQ(pool.idle_bytes(), size_t{8} << 20);
  pool.empty({64 << 20}, at::kByte);
  EXPECT_LE(pool.idle_bytes(), size_t{8} << 20);
}

TEST(BufferPool, IdleBlocksOfChangingSizesDoNotAddUp) {
  BufferPool pool(1 << 30);
  for (int64_t mebibytes : {8, 7, 6, 5, 4}) {
    const at::Tensor tensor = pool.empty({mebibytes << 20}, at::kByte);
    EXPECT_LE(pool.idle_bytes() + tensor.nbytes(), size_t{8} << 20);
  }
  {
    const at::Tensor one = pool.empty({4 << 20}, at::kByte),
                     other = pool.empty({6 << 20}, at::kByte);
    EXPECT_EQ(pool.idle_bytes(), 0u);
  }
  EXPECT_EQ(pool.idle_bytes(), size_t{10} << 20);  // The peak of the bytes in use.
}

TEST(BufferPool, UnmapsTheBlocksOfAPastPeak) {
  ManualClock clock;
  BufferPool pool(1 << 30, clock);
  const auto use = [&](int64_t mebibytes) { pool.empty({mebibytes << 20}, at::kByte); };
  {
    const at::Tensor one = pool.empty({4 << 20}, at::kByte),
                     other = pool.empty({6 << 20}, at::kByte);
  }
  clock.advance(std::chrono::seconds(11));
  use(4);
  EXPECT_EQ(pool.idle_bytes(), size_t{10} << 20);  // The peak was in the previous window.
  clock.advance(std::chrono::seconds(11));
  use(4);
  EXPECT_EQ(pool.idle_bytes(), size_t{4} << 20);
  clock.advance(std::chrono::seconds(60));
  use(4);
  EXPECT_EQ(pool.idle_bytes(), size_t{4} << 20);  // A pause alone does not empty the pool.
}

TEST(BufferPool, TensorsMayOutliveIt) {
  at::Tensor tensor;
  {
    BufferPool pool;
    tensor = pool.empty({1 << 20}, at::kFloat);
  }
  tensor.fill_(3);
  EXPECT_EQ(tensor.sum().item<float>(), 3.0f * (1 << 20));
  tensor.resize_({2 << 20});
  EXPECT_EQ(tensor[5].item<float>(), 3);
}

TEST(BufferPool, ServesLibTorchOperators) {
  configure_memory_for_server(64 << 20);
  BufferPool::shared().release_idle();
  const void* first = nullptr;
  {
    const at::Tensor tensor = at::ones({1 << 20});
    first = tensor.const_data_ptr();
  }
  EXPECT_EQ(BufferPool::shared().idle_bytes(), size_t{4} << 20);
  const at::Tensor again = at::zeros({1 << 20});
  EXPECT_EQ(again.const_data_ptr(), first);
  EXPECT_EQ(again.abs().max().item<float>(), 0);
  // Raw pointers can be allocated and freed, too.
  for (size_t bytes : {size_t{100}, size_t{1} << 20}) {
    void* memory = c10::GetCPUAllocator()->raw_allocate(bytes);
    std::memset(memory, 1, bytes);
    c10::GetCPUAllocator()->raw_deallocate(memory);
  }
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), /*priority=*/1);
}

}  // namespace
}  // namespace trireme
