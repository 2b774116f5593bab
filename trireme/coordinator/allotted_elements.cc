#include "trireme/coordinator/allotted_elements.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/element_account.h"
#include "trireme/data/ranges.h"

namespace trireme::internal {
namespace {

// Removes the elements after the first `count`, and returns them.
AllottedElements split_off(AllottedElements& elements, uint64_t count) {
  AllottedElements rest{.worker = elements.worker, .edition = elements.edition};
  std::vector<NumberSpan> kept;
  for (const NumberSpan& span : elements.numbers) {
    const uint64_t keep = std::min(span.count, count);
    count -= keep;
    if (keep > 0) kept.push_back({span.first, keep});
    if (keep < span.count) rest.numbers.push_back({span.first + keep, span.count - keep});
  }
  elements.numbers = std::move(kept);
  return rest;
}

void append(AllottedElements& elements, const AllottedElements& more) {
  elements.worker = more.worker;
  elements.edition = more.edition;
  for (const NumberSpan& span : more.numbers) {
    if (!elements.numbers.empty() &&
        elements.numbers.back().first + elements.numbers.back().count == span.first) {
      elements.numbers.back().count += span.count;
    } else {
      elements.numbers.push_back(span);
    }
  }
}

// Keeps the elements of earlier attempts that can be drawn again. Returns true if the closure has
// been allotted all that are left, and keeps them.
bool keep_elements(Closure& closure) {
  closure.allotted.resize(closure.accounts.size());
  const auto is_end = [](NumberSpan span) { return span.first == kNoElement; };
  bool keeps_all = true, has_end = false;
  for (size_t i = 0; i < closure.allotted.size(); ++i) {
    AllottedElements& elements = closure.allotted[i];
    if (!closure.accounts[i]->can_keep(elements)) {
      elements = {};
      keeps_all = false;
    }
    has_end = has_end || std::ranges::any_of(elements.numbers, is_end);
  }
  if (keeps_all && has_end) return true;
  for (AllottedElements& elements : closure.allotted) std::erase_if(elements.numbers, is_end);
  return false;
}

// Allots elements to one closure. If there are fewer than it needs for all its runs, it gets those
// for fewer runs, and then the end of the data. The same is done if it would have to wait, but may
// have pushed updates for the elements that it has, which it must not return.
Allotment::Outcome allot(Closure& closure, int worker, size_t& draw, uint64_t& changes) {
  if (keep_elements(closure)) return Allotment::Outcome::kReady;
  const uint32_t left = closure.repeat - closure.runs_done;
  uint32_t runs = left;
  for (draw = 0; draw < closure.accounts.size();) {
    ElementAccount& account = *closure.accounts[draw];
    AllottedElements& elements = closure.allotted[draw];
    const uint64_t each = closure.current->draws[draw];
    const uint64_t wanted = each * (account.is_shared() ? runs : left);
    const uint64_t kept = elements.count();
    if (elements.edition != 0 && kept >= wanted) {
      account.put_back(split_off(elements, wanted));
      ++draw;
      continue;
    }
    // All elements must be those of one iterator.
    const bool is_bound = kept > 0 && !account.is_shared();
    const Allotment more = account.allot(is_bound ? elements.worker : worker, wanted - kept);
    if (more.outcome == Allotment::Outcome::kReady) {
      append(elements, more.elements);
      ++draw;
      continue;
    }
    changes = more.changes;
    const bool waits = more.outcome == Allotment::Outcome::kLater;
    const uint64_t possible = (waits ? kept : kept + more.left) / each;
    if (possible == 0 || (waits && !closure.may_have_pushed)) return more.outcome;
    runs = static_cast<uint32_t>(possible);
    draw = 0;
  }
  for (size_t i = 0; runs < left && i < closure.accounts.size(); ++i) {
    if (closure.accounts[i]->is_shared()) closure.allotted[i].numbers.push_back({kNoElement, 1});
  }
  return Allotment::Outcome::kReady;
}

}  // namespace

AllottedClosures allot_elements(std::vector<ClosurePtr> closures, int worker,
                                const Requeue& requeue) {
  AllottedClosures result;
  for (ClosurePtr& closure : closures) {
    size_t draw = 0;
    uint64_t changes = 0;
    const Allotment::Outcome outcome = allot(*closure, worker, draw, changes);
    if (outcome == Allotment::Outcome::kReady) {
      result.ready.push_back(std::move(closure));
      continue;
    }
    // Closures that wait for each other's elements must not keep theirs.
    return_elements(*closure);
    if (outcome == Allotment::Outcome::kEnded) {
      result.ended.push_back({std::move(closure), draw});
      continue;
    }
    closure->accounts[draw]->on_change(changes, [requeue, closure] { requeue(closure); });
    result.waiting.push_back(std::move(closure));
  }
  return result;
}

void use_elements(Closure& closure) {
  for (size_t i = 0; i < closure.allotted.size(); ++i) {
    closure.accounts[i]->note_used(closure.allotted[i]);
  }
  closure.allotted.clear();
}

void return_elements(Closure& closure) {
  for (size_t i = 0; i < closure.allotted.size(); ++i) {
    closure.accounts[i]->put_back(closure.allotted[i]);
  }
  closure.allotted.clear();
}

void return_elements_of_unsent(const std::vector<ClosurePtr>& closures) {
  for (const ClosurePtr& closure : closures) {
    if (!closure->may_have_pushed) return_elements(*closure);
  }
}

// The number of runs comes from a worker, which may be wrong.
void use_elements_of_runs(Closure& closure, uint32_t runs, std::vector<at::Tensor> sums) {
  runs = std::min(runs, closure.repeat - 1);
  if (runs <= closure.runs_done) return;
  for (size_t i = 0; i < closure.allotted.size(); ++i) {
    AllottedElements& elements = closure.allotted[i];
    const uint64_t used = closure.current->draws[i] * (runs - closure.runs_done);
    AllottedElements rest = split_off(elements, used);
    closure.accounts[i]->note_used(elements);
    elements = std::move(rest);
  }
  closure.runs_done = runs;
  closure.sums = std::move(sums);
  closure.captures = 0;
}

absl::Status check_end(const Closure& closure, const DataEnd& end) {
  const bool is_known = end.draw < closure.allotted.size();
  const bool is_allotted =
      is_known && std::ranges::any_of(closure.allotted[end.draw].numbers, [&](NumberSpan span) {
        return end.number - span.first < span.count;  // Wraps around below the first.
      });
  if (is_allotted && !closure.accounts[end.draw]->exists(end.number)) return absl::OkStatus();
  return make_status(
      ErrorCode::kInternal,
      absl::StrCat(
          "the worker reported the end of ",
          is_known ? closure.accounts[end.draw]->describe()
                   : "a dataset that it does not draw from",
          is_allotted ? " before elements that exist" : " at an element that it was not to draw",
          "; the worker is faulty: stop it, and look for the cause in its log"),
      {"", absl::StrCat("function '", closure.function->name, "'")});
}

bool settle_end(Closure& closure, const DataEnd& end) {
  if (end.draw >= closure.allotted.size()) return false;
  const bool again =
      closure.accounts[end.draw]->note_end(closure.allotted[end.draw], end.number, end.is_beyond);
  return_elements(closure);
  return again;
}

ClosureResult result_at_end(Closure& closure, size_t draw, const absl::Status& error) {
  const std::vector<bool>& accepted = closure.current->accepts_end;
  if (draw >= accepted.size() || !accepted[draw]) return error;
  if (closure.sum_results && closure.runs_done > 0) return std::move(closure.sums);
  closure.has_value = false;
  return std::vector<at::Tensor>();
}

absl::Status no_more_elements(const Closure& closure, size_t draw) {
  return make_status(
      ErrorCode::kEndOfData,
      absl::StrCat("there are no more elements in ", closure.accounts[draw]->describe(),
                   "; set the number of epochs in its options, or draw with next_optional()"),
      {"", absl::StrCat("function '", closure.function->name, "'")});
}

// The updates of a closure that was cancelled while it ran may have been applied, so its elements
// are not used again.
void Closure::release() {
  may_have_pushed ? use_elements(*this) : return_elements(*this);
  tensors.clear();
  sums.clear();
  resources.clear();
  accounts.clear();
  capture_again = nullptr;
}

}  // namespace trireme::internal
