#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// Arguments that functions draw elements from, such as iterators over data. A graph cannot draw
// elements itself, so they are drawn before each step and become inputs of its graph. The number
// that a step needs is found out while it is captured (draw_discovery.h).
namespace trireme::internal {

// One element of a source, as its tensors.
using Element = std::vector<at::Tensor>;

// An element and its number among the elements of its source, counted from 0.
struct NumberedElement {
  Element element;
  uint64_t number = 0;
};

// A sequence of elements that functions draw from. Implementations are thread-safe.
class ElementSource {
 public:
  virtual ~ElementSource() = default;
  // Takes the next element. Throws Error, with code END_OF_DATA if there are no more.
  virtual NumberedElement draw() = 0;
  // Does the same for a caller that accepts that there are no more elements.
  virtual NumberedElement draw_optional() { return draw(); }
  // Lets an element that was drawn be drawn again, before those with larger numbers. To put back
  // several, begin with the last one.
  virtual void put_back(NumberedElement element) = 0;
  // Returns the id of the source on a worker that this one stands for; 0 if it stands for none. A
  // source that stands for another returns only examples of elements.
  virtual uint64_t resource() const { return 0; }
  // Returns a name for errors.
  virtual std::string name() const = 0;
};

// Thrown by a call of a function that accepts the end of the data, if there are no more elements.
// Not a std::exception, so that no program catches it.
struct EndAccepted {};

using ElementSources = std::vector<std::shared_ptr<ElementSource>>;

// The elements that were drawn from sources for one step. Its destructor puts them back unless
// keep() was called. Not thread-safe.
class Draws {
 public:
  explicit Draws(ElementSources sources);
  ~Draws();

  Draws(Draws&&) = default;
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;

  // Draws elements or puts them back until there are `counts[i]` of source `i`. Throws Error, with
  // code END_OF_DATA if a source has too few.
  void adjust(const std::vector<size_t>& counts);
  // Marks the elements as used, so that they are not put back.
  void keep() {
    elements_.clear();
    numbers_.clear();
  }

  const ElementSources& sources() const { return sources_; }
  // Returns the elements of each source, in the order in which they were drawn.
  const std::vector<std::vector<Element>>& elements() const { return elements_; }
  // Returns the number of elements of each source.
  std::vector<size_t> counts() const;

 private:
  ElementSources sources_;
  std::vector<std::vector<Element>> elements_;
  std::vector<std::vector<uint64_t>> numbers_;  // of these elements
};

// The source that the body of a function sees during a capture. Hands out the elements that were
// drawn from the real source, as the tensors that stand for them in the capture, and counts how
// many the body asks for. If the body asks for more than were drawn, it gets the last element
// again: the capture is then good for the count only, and is discarded. Not thread-safe.
class DrawnElements : public ElementSource {
 public:
  // Thrown by draw() if there is no element to hand out. Not a std::exception, so that the body
  // does not catch it.
  struct Exhausted {};

  DrawnElements(std::string name, std::vector<Element> elements)
      : name_(std::move(name)), elements_(std::move(elements)) {}

  NumberedElement draw() override;
  NumberedElement draw_optional() override {
    ++asked_optionally_;
    return draw();
  }
  void put_back(NumberedElement) override { --asked_; }
  std::string name() const override { return name_; }
  // Returns the number of elements that the body has asked for.
  size_t asked() const { return asked_; }
  // Returns true if the body accepts for each of them that there is none.
  bool accepts_end() const { return asked_optionally_ >= asked_; }

 private:
  const std::string name_;
  const std::vector<Element> elements_;
  size_t asked_ = 0;
  size_t asked_optionally_ = 0;  // number of these that were asked for by draw_optional()
};

}  // namespace trireme::internal
