#include "trireme/data/string_lookup.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>

#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/data/element.h"
#include "trireme/data/listed_texts.h"
#include "trireme/data/text.h"

// A captured function consists of operators, so the lookup does too. Text is seen as words of
// eight bytes, from which a hash of 64 bits is computed. The entries are sorted by their hashes, no
// two of which are equal, and a binary search finds the one entry that a text can be. Text and
// entry are then compared word by word, so text with the hash of another entry is still unknown.
//
// Each word is mixed by a bijection of its own, and the hash is their sum. So entries that differ
// in one word have different hashes, and others differ with a probability of 1 - 2^-64 for each
// seed of the bijections. If two are equal after all, the next seed is tried. A word of zeros adds
// nothing, so the hash, and with it the bucket of unknown text, does not depend on the width.
namespace trireme {
namespace {

using at::Tensor;

constexpr int64_t kWordBytes = 8;
constexpr int64_t kMostTextBytes = 1 << 16;
constexpr int64_t kMostBuckets = int64_t{1} << 31;
constexpr uint64_t kMostVocabularyBytes = uint64_t{1} << 30;

// Returns text of shape [..., bytes] as words of shape [rows, words].
Tensor to_words(const Tensor& text) {
  const int64_t bytes = text.size(-1);
  const int64_t filler = (kWordBytes - bytes % kWordBytes) % kWordBytes;
  // The copy puts the words at addresses that int64 can have, whatever memory the text is in, and
  // makes the captured operators right for text of other strides as well.
  const Tensor rows = text.clone(at::MemoryFormat::Contiguous).view({text.numel() / bytes, bytes});
  return (filler == 0 ? rows : at::constant_pad_nd(rows, {0, filler})).view(at::kLong);
}

// Returns random odd numbers, one for each word of a text, that follow from the seed.
Tensor multipliers(int64_t words, uint64_t seed) {
  Tensor numbers = at::empty({words}, at::kLong);
  for (int64_t i = 0; i < words; ++i) {
    uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(i);
    for (int round = 0; round < 3; ++round) {
      mixed = (mixed ^ (mixed >> 31)) * 0xd6e8feb86659fd93;
    }
    numbers.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(mixed | 1);
  }
  return numbers;
}

// Returns the hashes, of shape [rows], of words of shape [rows, words].
Tensor hash_words(const Tensor& words, const Tensor& first, const Tensor& second) {
  const Tensor mixed = words * first;
  // The shift keeps the sign, so the mask makes it a shift of unsigned numbers.
  const Tensor high = mixed.bitwise_right_shift(32).bitwise_and(0xffffffff);
  return (mixed.bitwise_xor(high) * second).sum(1);
}

void check_lookup(const std::vector<std::string>& vocabulary, const StringLookupOptions& options,
                  const Origin& origin) {
  const auto reject = [&](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message, origin);
  };
  if (options.oov_buckets < 0 || options.oov_buckets > kMostBuckets) {
    reject(absl::StrCat("oov_buckets is ", options.oov_buckets, "; it must be 0 to 2^31"));
  }
  if (options.bytes < 1 || options.bytes > kMostTextBytes) {
    reject(absl::StrCat("bytes is ", options.bytes, "; it must be 1 to ", kMostTextBytes));
  }
  if (vocabulary.empty()) reject("the vocabulary is empty; it needs at least one entry");
  std::unordered_set<std::string> seen, reported;
  std::vector<const std::string*> repeated;
  for (const std::string& entry : vocabulary) {
    if (!seen.insert(entry).second && reported.insert(entry).second) repeated.push_back(&entry);
  }
  if (!repeated.empty()) {
    reject(absl::StrCat(
        repeated.size() == 1 ? "1 entry occurs" : absl::StrCat(repeated.size(), " entries occur"),
        " more than once in the vocabulary: ", internal::listed_texts(repeated)));
  }
}

}  // namespace

struct StringLookup::Tables {
  StringLookupOptions options;
  std::vector<std::string> vocabulary;
  Tensor first, second;  // multipliers of the hash
  Tensor hashes;         // hashes of the entries, ascending
  Tensor words, ids;     // words and id of each entry, in the order of `hashes`
};

StringLookup::StringLookup(const std::vector<std::string>& vocabulary,
                           const StringLookupOptions& options)
    : StringLookup(vocabulary, options, "StringLookup") {}

StringLookup::StringLookup(const std::vector<std::string>& vocabulary,
                           const StringLookupOptions& options, const std::string& name) {
  const Origin origin{"", name};
  check_lookup(vocabulary, options, origin);
  const internal::SuspendDeviceCheck own;
  auto tables = std::make_shared<Tables>();
  tables->options = options;
  tables->vocabulary = vocabulary;
  Tensor words;
  try {
    words = to_words(text_tensor(vocabulary, options.bytes));
  } catch (const Error& error) {
    throw Error(error.code(), error.message(), origin);
  }
  Tensor order;
  for (uint64_t seed = 0;; seed += 2) {
    tables->first = multipliers(words.size(1), seed);
    tables->second = multipliers(words.size(1), seed + 1);
    std::tie(tables->hashes, order) = hash_words(words, tables->first, tables->second).sort();
    const int64_t last = tables->hashes.size(0) - 1;
    if (!tables->hashes.narrow(0, 0, last).eq(tables->hashes.narrow(0, 1, last)).any().item<bool>())
      break;
  }
  tables->words = words.index_select(0, order);
  tables->ids = order + options.oov_buckets;
  tables_ = std::move(tables);
}

StringLookup StringLookup::from_file(const std::string& path, const StringLookupOptions& options) {
  const std::string name = absl::StrCat("StringLookup of '", path, "'");
  const auto text = Files::local().read_text(path, kMostVocabularyBytes);
  throw_if_error(with_origin(text.status(), {"", name}));
  std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  if (lines.back().empty()) lines.pop_back();
  for (std::string& line : lines) {
    if (line.ends_with('\r')) line.pop_back();
  }
  return StringLookup(lines, options, name);
}

Tensor StringLookup::forward(const Tensor& text) const {
  const Tables& tables = *tables_;
  const int64_t bytes = tables.options.bytes, buckets = tables.options.oov_buckets;
  if (text.scalar_type() != at::kByte || text.dim() == 0 || text.size(-1) != bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the text is ", to_string(spec_of({text})),
                             "; it must be uint8 with a last size of ", bytes,
                             ", which is the option bytes"),
                {"", "StringLookup"});
  }
  const Tensor words = to_words(text);
  const Tensor hash = hash_words(words, tables.first, tables.second);
  // The largest hash has no place behind it.
  const Tensor place = at::searchsorted(tables.hashes, hash).clamp_max(tables.hashes.size(0) - 1);
  const Tensor found = tables.words.index_select(0, place).eq(words).all(1);
  // The upper half of the hash depends on all bytes of the text, the lower half does not.
  const Tensor unknown = buckets > 1 ? at::remainder(hash.bitwise_right_shift(32), buckets)
                                     : at::full_like(hash, buckets - 1);
  return at::where(found, tables.ids.index_select(0, place), unknown)
      .view(text.sizes().slice(0, text.dim() - 1));
}

const std::vector<std::string>& StringLookup::vocabulary() const {
  return tables_->vocabulary;
}

int64_t StringLookup::size() const {
  return static_cast<int64_t>(tables_->vocabulary.size()) + tables_->options.oov_buckets;
}

}  // namespace trireme
