#pragma once

namespace torch {
class Library;
}

namespace trireme::internal {

// Adds operators on the rows of a table to the library of Trireme's own operators. They compute the
// gradient of a table without building it (ps/row_gradients.h):
//
// - `sum_rows` adds up the rows that have the same id. It takes several lists of ids, each with one
//   row for each id, and returns the distinct ids in ascending order and one row for each of them.
//   Entries with the id `no_row` of their list are left out; -1 leaves out none.
// - `bag_rows` returns one row for each index of an `embedding_bag` with the mode sum (0) or mean
//   (1): the share that the index has in the gradient of its bag. The rows of padding indices have
//   no meaning.
void define_row_operators(torch::Library& library);

}  // namespace trireme::internal
