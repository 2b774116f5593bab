#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "trireme/function/drawn_call.h"

// Finds out how many elements a call draws from each of its sources. The body runs on the elements
// that were drawn so far. If it asks for another number of them, the capture is discarded and tried
// again with that number.
namespace trireme::internal {

// Thrown by DrawingBody if the body asked for other numbers of elements than were drawn. Not a
// std::exception, so that no program catches it.
struct DrawCountMismatch {
  std::vector<size_t> counts;     // number of elements of each source to try next
  std::vector<bool> accepts_end;  // for each source, true if the body accepts that it ends
};

// Runs the body of a call in a capture, with drawn elements in place of the sources. The function's
// name and the call must outlive it. Not thread-safe.
class DrawingBody {
 public:
  DrawingBody(const std::string& function, const DrawnCall& call)
      : function_(function), call_(call) {}

  // Runs the body on the inputs of the graph and returns its results. Throws DrawCountMismatch if
  // the body asks for other numbers of elements than were drawn, or Error if it does so although an
  // earlier run asked for exactly those that were drawn.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs);
  // Returns for each source whether the body accepts that it ends. Must be called after a run.
  const std::vector<bool>& accepts_end() const { return accepts_end_; }

 private:
  TensorCursor::Drawn make_drawn_elements(const std::vector<at::Tensor>& inputs) const;
  void check_counts(const TensorCursor::Drawn& drawn, bool ended);

  const std::string& function_;
  const DrawnCall& call_;
  std::vector<bool> accepts_end_;
  bool settled_ = false;  // true once a run asked for exactly the elements that were drawn
};

// Repeats the capture of one call until as many elements are drawn as the body asks for. The
// function's name and the call must outlive it. Not thread-safe.
class DrawDiscovery {
 public:
  DrawDiscovery(const std::string& function, DrawnCall& call);

  // Calls `attempt`, which captures with a DrawingBody, and returns its result. While it throws
  // DrawCountMismatch, draws other numbers of elements and calls it again. Throws Error after too
  // many attempts, and with code END_OF_DATA if a source has too few elements, or EndAccepted if
  // the body accepts that.
  template <typename Attempt>
  auto run(Attempt attempt) {
    for (;;) {
      try {
        return attempt();
      } catch (const DrawCountMismatch& others) {
        redraw(others);
      }
    }
  }

 private:
  void redraw(const DrawCountMismatch& others);

  const std::string& function_;
  DrawnCall& call_;
  size_t attempts_left_;
};

}  // namespace trireme::internal
