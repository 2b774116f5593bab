#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/function/captured_graph.h"

namespace trireme::internal {

// Returns one key for the signatures of all arguments and for the modes that a graph depends on:
// gradient mode, default dtype and autocast.
std::string signature_key(const std::vector<std::string>& arguments);

// The captured graphs of one function, by the signature of their calls. Evicts the least recently
// used one. Warns if the function is captured too often. Thread-safe.
class SignatureCache {
 public:
  struct Entry {
    std::string key;            // key of the arguments with the elements drawn from them
    std::string arguments;      // key of the arguments alone, which is known before any draw
    std::vector<size_t> draws;  // number of elements that a step draws from each source
    std::shared_ptr<const CapturedGraph> graph;
  };

  SignatureCache(std::string function, size_t capacity);

  // Returns the graph for the key; null if there is none, or if it is no longer valid.
  std::shared_ptr<const CapturedGraph> find(const std::string& key);
  // Adds a graph that was just captured. `arguments` are the signatures in the entry's key.
  void add(Entry entry, std::vector<std::string> arguments);

  // Returns how many elements the last call with these arguments drew from each of its `sources`;
  // zeros if there was no such call.
  std::vector<size_t> known_draws(const std::string& arguments, size_t sources) const;
  // Returns how many graphs were added so far.
  int captures() const;

 private:
  // Returns all graphs with the key, most recently used first.
  std::vector<std::shared_ptr<const CapturedGraph>> graphs_of(const std::string& key) const;
  // Counts a capture and warns if there were too many.
  void count_capture(std::vector<std::string> arguments) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string function_;
  const size_t capacity_;

  mutable Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  int captures_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> last_arguments_
      ABSL_GUARDED_BY(mutex_);  // arguments of the last capture
};

}  // namespace trireme::internal
