#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/function/captured_graph.h"

namespace trireme::internal {

// Returns one text for the signatures of all arguments, with the modes of the calling thread that a
// graph depends on.
std::string signature_key(const std::vector<std::string>& arguments);

// The captured graphs of one function by the signature of their calls. Evicts the least recently
// used. Warns when the function is captured again and again. Thread-safe.
class SignatureCache {
 public:
  struct Entry {
    std::string key;            // of the arguments with the elements that were drawn from them
    std::string arguments;      // the key without elements, which is known before any is drawn
    std::vector<size_t> draws;  // how many elements a step draws from each source
    std::shared_ptr<const CapturedGraph> graph;
  };

  SignatureCache(std::string function, size_t capacity);

  // Returns null if there is no graph for the key, or if the one there was does not hold any more.
  std::shared_ptr<const CapturedGraph> find(const std::string& key);
  // `arguments` are the signatures that the entry's key was made of.
  void add(Entry entry, std::vector<std::string> arguments);

  // Returns how many elements a call with such arguments drew last from each of its `sources`;
  // zeros if there was none.
  std::vector<size_t> known_draws(const std::string& arguments, size_t sources) const;
  // Returns how many graphs were added so far.
  int captures() const;

 private:
  void note_capture(std::vector<std::string> arguments) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string function_;
  const size_t capacity_;

  mutable Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // the most recently used first
  int captures_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> last_arguments_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
