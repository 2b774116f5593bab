#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "trireme/function/drawn_call.h"

// Finds out how many elements a call draws from each of its sources, by running the body: it sees
// the elements drawn so far, and a capture in which it asks for another number of them is given up
// and tried again with that number.
namespace trireme::internal {

// Thrown by a body that asked for other numbers of elements than were drawn. Not for a program to
// catch, so no std::exception.
struct DrawOthers {
  std::vector<size_t> counts;  // elements of each source to try next
};

// The body of one capture, which sees for each source the elements that were drawn from it. Refers
// to the function's name and to the call, which must outlive it. Used by one thread.
class DrawingBody {
 public:
  DrawingBody(const std::string& function, const DrawnCall& call)
      : function_(function), call_(call) {}

  // Throws DrawOthers, or Error if the body asks for one number of elements now and for another
  // the next time.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs);

 private:
  TensorCursor::Drawn stand_ins(const std::vector<at::Tensor>& inputs) const;
  void check_counts(const TensorCursor::Drawn& drawn, bool ended);

  const std::string& function_;
  const DrawnCall& call_;
  bool settled_ = false;  // true once a run asked for what was drawn
};

// Repeats the capture of one call until the elements drawn are those that the body asks for. Refers
// to the function's name and to the call, which must outlive it. Used by one thread.
class DrawDiscovery {
 public:
  DrawDiscovery(const std::string& function, DrawnCall& call);

  // Returns the result of `attempt`, which captures with a DrawingBody; called again, with other
  // elements drawn, for as long as it throws DrawOthers. Throws Error if that does not end.
  template <typename Attempt>
  auto run(Attempt attempt) {
    for (;;) {
      try {
        return attempt();
      } catch (const DrawOthers& others) {
        draw_others(others);
      }
    }
  }

 private:
  void draw_others(const DrawOthers& others);

  const std::string& function_;
  DrawnCall& call_;
  size_t attempts_left_;
};

}  // namespace trireme::internal
