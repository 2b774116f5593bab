// The number of values is known before they are decoded: all packed floats have four bytes, and
// each varint has one byte whose highest bit is not set. So the loops that decode need not check
// for the end of their output.
#include "trireme/data/tf_list.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "trireme/data/tf_fields.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define TRIREME_PEXT_INSTRUCTION
#endif

namespace trireme::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

uint64_t load_tf_word(const uint8_t* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Returns a word with bytes of 1 where the bytes of `word` are the last ones of varints.
uint64_t last_bytes(uint64_t word) {
  return (~word & 0x8080808080808080) >> 7;
}

// Returns the number of varints, or -1 if the last one has no end.
int64_t count_varints(std::string_view run) {
  const auto* at = reinterpret_cast<const uint8_t*>(run.data());
  const auto* end = at + run.size();
  if (at == end) return 0;
  if (end[-1] >= 0x80) return -1;
  int64_t count = 0;
  for (; end - at >= 8; at += 8) {  // The product adds up the bytes.
    count += static_cast<int64_t>(last_bytes(load_tf_word(at)) * 0x0101010101010101 >> 56);
  }
  for (; at != end; ++at) count += *at < 0x80 ? 1 : 0;
  return count;
}

struct PackWithShifts {
  static uint64_t pack(uint64_t word) { return pack_tf_varint(word); }
};

#ifdef TRIREME_PEXT_INSTRUCTION
// Does the same as pack_tf_varint() with one instruction, which is slow on the first processors of
// AMD that have it.
struct PackWithPext {
  __attribute__((target("bmi2"))) static uint64_t pack(uint64_t word) {
    return _pext_u64(word, 0x7f7f7f7f7f7f7f7f);
  }
  static bool is_fast() {
    static const bool is_fast = __builtin_cpu_supports("bmi2") && !__builtin_cpu_is("znver1") &&
                                !__builtin_cpu_is("znver2");
    return is_fast;
  }
};
#endif

// Output of the loop that decodes varints.
template <typename T>
class IntegersOf {
 public:
  explicit IntegersOf(T* out) : out_(out) {}

  // Returns a value that was put and that T does not have.
  std::optional<int64_t> misfit() const { return misfit_; }

  void put(uint64_t bits) {
    const auto value = static_cast<int64_t>(bits);
    *out_ = static_cast<T>(value);
    if (static_cast<int64_t>(*out_) != value) misfit_ = value;
    ++out_;
  }

  // Decodes varints of which the last one has an end. Returns false if one is too long.
  bool put_varints(std::string_view run) {
    if (run.size() > kMostVarintBytes) {
      const int64_t bytes = put_many(run);
      if (bytes < 0) return false;
      run.remove_prefix(bytes);
    }
    TfFields fields(run);
    while (!fields.done()) {
      uint64_t value;
      if (!fields.read_varint(&value)) return false;
      put(value);
    }
    return true;
  }

 private:
  static constexpr int64_t kBlock = 64;
  static constexpr size_t kMostVarintBytes = 10;

  // Decodes varints up to the last few. Returns the number of their bytes, or -1 if one is too
  // long.
  int64_t put_many(std::string_view run) {
#ifdef TRIREME_PEXT_INSTRUCTION
    if (PackWithPext::is_fast()) return put_many_with_pext(run);
#endif
    return put_blocks<PackWithShifts>(run);
  }

#ifdef TRIREME_PEXT_INSTRUCTION
  // Has the loop inlined, so that it is compiled for the instruction.
  __attribute__((target("bmi,bmi2"), flatten)) int64_t put_many_with_pext(std::string_view run) {
    return put_blocks<PackWithPext>(run);
  }
#endif

  template <typename Pack>
  int64_t put_blocks(std::string_view run) {
    const auto* begin = reinterpret_cast<const uint8_t*>(run.data());
    const auto* end = begin + run.size();
    const auto* at = begin;
    while (end - at >= kBlock + 8) {
      const int64_t bytes = put_block<Pack>(at, last_bits(at));
      if (bytes == 0) return -1;
      at += bytes;
    }
    while (end - at > static_cast<int64_t>(kMostVarintBytes)) {
      // A copy has bytes behind it that may be read.
      uint8_t rest[kBlock + 8] = {};
      const int64_t size = std::min(end - at, kBlock);
      std::memcpy(rest, at, size);
      const int64_t bytes =
          put_block<Pack>(rest, last_bits(rest) & ~uint64_t{0} >> (kBlock - size));
      if (bytes == 0) return -1;
      at += bytes;
    }
    return at - begin;
  }

  // Returns a bit for each of kBlock bytes, which is 1 if the byte is the last one of a varint.
  static uint64_t last_bits(const uint8_t* from) {
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) {  // The product moves the bits of the bytes side by side.
      bits |= (last_bytes(load_tf_word(from + 8 * i)) * 0x0102040810204080 >> 56) << (8 * i);
    }
    return bits;
  }

  // Decodes the varints that end where the bits are 1. Eight bytes behind the block may be read.
  // Returns the number of bytes that they have, or 0 if one is too long. The places are known from
  // the bits, so that the processor can decode several varints at the same time.
  template <typename Pack>
  int64_t put_block(const uint8_t* from, uint64_t last_bits) {
    int begin = 0;
    if (last_bits == ~uint64_t{0}) {
      for (; begin < kBlock; ++begin) put(from[begin]);
    }
    for (; last_bits != 0 && begin < kBlock; last_bits &= last_bits - 1) {
      const int end = std::countr_zero(last_bits) + 1, bytes = end - begin;
      const uint64_t word = load_tf_word(from + begin);
      if (bytes <= 8) {
        put(Pack::pack(word & ~uint64_t{0} >> (64 - 8 * bytes)));
      } else if (bytes <= 10) {
        // The processor cannot predict the sign, so there is no branch for the tenth byte.
        const uint64_t ninth = from[begin + 8] & 0x7f;
        const uint64_t tenth = from[begin + 9] & static_cast<uint64_t>(bytes == 10);
        put(Pack::pack(word) | ninth << 56 | tenth << 63);
      } else {
        return 0;
      }
      begin = end;
    }
    return begin;
  }

  T* out_;
  std::optional<int64_t> misfit_;
};

template <typename T>
bool put_numbers_of(std::string_view run, T* out, std::optional<int64_t>* misfit) {
  if constexpr (std::is_same_v<T, float>) {
    if (!run.empty()) std::memcpy(out, run.data(), run.size());
    return true;
  } else if constexpr (std::is_same_v<T, double>) {
    for (size_t i = 0; i < run.size(); i += sizeof(float)) {
      float value;
      std::memcpy(&value, run.data() + i, sizeof(value));
      *out++ = value;
    }
    return true;
  } else {
    IntegersOf<T> integers(out);
    const bool is_valid = integers.put_varints(run);
    *misfit = integers.misfit();
    return is_valid;
  }
}

}  // namespace

bool find_tf_list(std::string_view feature, std::string* joined, TfListKind* kind,
                  std::string_view* list) {
  TfFields fields(feature);
  *kind = TfListKind::kNone;
  bool is_joined = false;
  while (!fields.done()) {
    uint32_t tag;
    std::string_view bytes;
    if (!fields.read_tag(&tag)) return false;
    if ((tag & 7) != kTfBytes || tag >> 3 > 3) {
      if (!fields.skip(tag)) return false;
      continue;
    }
    if (!fields.read_bytes(&bytes)) return false;
    const auto its_kind = static_cast<TfListKind>(tag >> 3);
    if (its_kind != *kind) {  // The fields are a oneof, so that another kind replaces the list.
      *kind = its_kind;
      *list = bytes;
      is_joined = false;
      continue;
    }
    if (!is_joined) joined->assign(*list);
    is_joined = true;
    *list = joined->append(bytes);
  }
  return true;
}

bool find_tf_run(std::string_view list, TfListKind kind, std::string* joined,
                 std::string_view* run) {
  TfFields fields(list);
  *run = {};
  bool is_first = true;
  while (!fields.done()) {
    uint32_t tag;
    std::string_view part;
    if (!fields.read_tag(&tag)) return false;
    const char* begin = fields.at();
    if (tag == tf_tag(1, kTfBytes)) {
      if (!fields.read_bytes(&part)) return false;
    } else {
      // The bytes of a value that is not packed are those of a packed one.
      if (!fields.skip(tag)) return false;
      if (tag != tf_tag(1, kind == TfListKind::kFloat ? kTfFixed32 : kTfVarint)) continue;
      part = {begin, static_cast<size_t>(fields.at() - begin)};
    }
    if (is_first && fields.done()) {
      *run = part;
      return true;
    }
    if (is_first) joined->clear();
    is_first = false;
    // A part that ends in the middle of a value is not valid, even if the next one continues it.
    if (count_tf_numbers(part, kind) < 0) return false;
    *run = joined->append(part);
  }
  return true;
}

int64_t count_tf_numbers(std::string_view run, TfListKind kind) {
  if (kind == TfListKind::kInt64) return count_varints(run);
  return run.size() % sizeof(float) == 0 ? static_cast<int64_t>(run.size() / sizeof(float)) : -1;
}

bool put_tf_numbers(std::string_view run, c10::ScalarType dtype, void* out,
                    std::optional<int64_t>* misfit) {
  return with_tf_type(dtype, [&](auto zero) {
    return put_numbers_of(run, static_cast<decltype(zero)*>(out), misfit);
  });
}

}  // namespace trireme::internal
