#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// Arguments that functions draw elements from, such as iterators over data. A graph cannot draw:
// elements are drawn before each step and are inputs of its graph. How many a step needs is learnt
// while it is captured.
namespace trireme::internal {

using Element = std::vector<at::Tensor>;

// What such an argument draws from. Thread-safe.
class ElementSource {
 public:
  virtual ~ElementSource() = default;
  // Throws Error, END_OF_DATA where there are no more.
  virtual Element draw() = 0;
  // The next to be drawn; whoever puts back several begins with the last.
  virtual void put_back(Element element) = 0;
  // The source on a worker that this one stands for, with examples for elements; 0 for none.
  virtual uint64_t resource() const { return 0; }
  virtual std::string name() const = 0;
};

using ElementSources = std::vector<std::shared_ptr<ElementSource>>;

// Elements taken from sources for one step. Those that are not kept go back.
class Draws {
 public:
  explicit Draws(ElementSources sources);
  ~Draws();

  Draws(Draws&&) = default;
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;

  // Draws or puts back until so many of each source are here.
  void adjust(const std::vector<size_t>& counts);
  void keep() { elements_.clear(); }

  const ElementSources& sources() const { return sources_; }
  // Of each source.
  const std::vector<std::vector<Element>>& elements() const { return elements_; }
  std::vector<size_t> counts() const;

 private:
  ElementSources sources_;
  std::vector<std::vector<Element>> elements_;
};

// What the body of a function sees in place of a source: the elements drawn from it, as the tensors
// that stand for them in the capture. A body that asks for more is of no use but to find out how
// many it asks for. Used by one thread.
class DrawnElements : public ElementSource {
 public:
  // There is none that could be given. Not for the body to catch, so no std::exception.
  struct Exhausted {};

  DrawnElements(std::string name, std::vector<Element> elements)
      : name_(std::move(name)), elements_(std::move(elements)) {}

  Element draw() override;
  void put_back(Element) override { --asked_; }
  std::string name() const override { return name_; }
  size_t asked() const { return asked_; }

 private:
  const std::string name_;
  const std::vector<Element> elements_;
  size_t asked_ = 0;
};

}  // namespace trireme::internal
