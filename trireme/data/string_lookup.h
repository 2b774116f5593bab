#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

// Options of a StringLookup.
struct StringLookupOptions {
  // Number of ids for text that is not in the vocabulary. With 0 it gets the id -1.
  int64_t oov_buckets = 1;
  // Width of the text tensors, in bytes: that of the text_column().
  int64_t bytes = 32;
};

// Turns text into the numbers that an embedding takes, by a vocabulary:
//
//   tr::StringLookup lookup({"ram", "oar"}, {.bytes = 8});
//   lookup(tr::text_tensor({"oar", "ram", "sail"}, 8));  // 2, 1, 0
//
// The ids are those of Keras' layer of this name: 0 to oov_buckets - 1 for text that is not in the
// vocabulary, which is spread over these buckets by a hash, and then one id for each entry, in the
// order of the list. With oov_buckets = 0 unknown text has the id -1, which an embedding rejects.
//
// Used like a module: call it in the forward() of a net, in a captured function, or in
// Dataset::map(), here or on workers. It has no parameters; its tables become constants of the
// captured graph. Immutable, and copies share the tables. Thread-safe.
class StringLookup {
 public:
  // Makes a lookup of these entries. Throws Error, which lists them, if entries occur more than
  // once, are longer than `bytes`, or have a zero byte.
  explicit StringLookup(const std::vector<std::string>& vocabulary,
                        const StringLookupOptions& options = {});
  // Makes a lookup of the lines of a file, without their ends. The file is read by this call, in
  // the program.
  static StringLookup from_file(const std::string& path, const StringLookupOptions& options = {});

  // Returns the ids, as int64 of shape [...], of text of torch::kByte and shape [..., bytes].
  at::Tensor forward(const at::Tensor& text) const;
  // Does the same.
  at::Tensor operator()(const at::Tensor& text) const { return forward(text); }

  // Returns the entries, in the order of their ids.
  const std::vector<std::string>& vocabulary() const;
  // Returns the number of ids, which is the size that an embedding needs: entries and buckets.
  int64_t size() const;

 private:
  struct Tables;

  StringLookup(const std::vector<std::string>& vocabulary, const StringLookupOptions& options,
               const std::string& name);

  std::shared_ptr<const Tables> tables_;
};

}  // namespace trireme
