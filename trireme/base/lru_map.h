#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <utility>
#include <vector>

namespace trireme {

// A map that knows the order in which its entries were used, for caches that evict the entry that
// was used longest ago. find() and put() use an entry. Iterates from the entry used last to the one
// used longest ago. Not thread-safe.
template <typename Key, typename Value>
class LruMap {
 public:
  // Returns the value of the key, or null if there is none. The pointer is valid until the entry is
  // evicted.
  Value* find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->second;
  }

  // Adds an entry, or replaces its value.
  void put(const Key& key, Value value) {
    if (Value* known = find(key)) {
      *known = std::move(value);
      return;
    }
    entries_.emplace_front(key, std::move(value));
    places_.emplace(key, entries_.begin());
  }

  // Evicts entries until at most `most` are left, and returns their values. Passes over values for
  // which `may_evict` returns false, so that more than `most` entries may stay.
  template <typename MayEvict>
  std::vector<Value> evict(size_t most, MayEvict may_evict) {
    std::vector<Value> evicted;
    for (auto next = entries_.end(); next != entries_.begin() && entries_.size() > most;) {
      --next;
      if (!may_evict(next->second)) continue;
      evicted.push_back(std::move(next->second));
      places_.erase(next->first);
      next = entries_.erase(next);
    }
    return evicted;
  }
  std::vector<Value> evict(size_t most) {
    return evict(most, [](const Value&) { return true; });
  }

  void clear() {
    places_.clear();
    entries_.clear();
  }

  size_t size() const { return entries_.size(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  using Entries = std::list<std::pair<Key, Value>>;

  Entries entries_;  // The entry that was used last comes first.
  std::map<Key, typename Entries::iterator> places_;
};

}  // namespace trireme
