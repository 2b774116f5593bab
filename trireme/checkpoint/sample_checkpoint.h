#pragma once

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/tensor_file.h"

// A small checkpoint for tests: a matrix with a slot on two servers, and in the program a vector, a
// scalar and a tensor without elements. Its values follow from the step.
namespace trireme::internal {

inline at::Tensor sample_matrix(uint64_t step) {
  return at::arange(18, at::kFloat).reshape({6, 3}).add(static_cast<double>(step));
}

inline TensorToSave to_save(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor.scalar_type(), tensor.sizes().vec(), tensor.const_data_ptr(),
          tensor.nbytes()};
}

// Values of the sample by the names of variables, with slots as "<variable>#<slot>".
inline std::map<std::string, at::Tensor> sample_values(uint64_t step) {
  return {{"w", sample_matrix(step)},
          {"w#exp_avg", sample_matrix(step).mul(0.5)},
          {"bias", at::arange(3).add(static_cast<int64_t>(step)).to(at::kBFloat16)},
          {"count", at::scalar_tensor(static_cast<int64_t>(step), at::kLong)},
          {"nothing", at::empty({0, 4})}};
}

// Writes the files of the sample and returns its manifest.
inline absl::StatusOr<Manifest> write_sample_files(Files& files, const std::string& folder,
                                                   uint64_t step) {
  const std::map<std::string, at::Tensor> values = sample_values(step);
  Manifest manifest;
  manifest.step = step;
  manifest.id = absl::StrCat("save-", step);
  manifest.saved_at = "2026-01-02T03:04:05Z";
  manifest.seed = 7;
  manifest.iterators = {{"train", false, "rows 100", {{11, 5, {2, 3}}}}};

  SavedVariable matrix = {"w", at::kFloat, {6, 3}, true, "adam", {{"lr", 0.1}}, {"exp_avg"}, {}};
  const std::vector<std::pair<int64_t, int64_t>> rows = {{0, 4}, {4, 6}};
  for (int server = 0; server < 2; ++server) {
    const auto [first, end] = rows[static_cast<size_t>(server)];
    const std::string name = absl::StrCat("w/part_", server);
    const at::Tensor contents = values.at("w").slice(0, first, end).contiguous();
    const at::Tensor slot = values.at("w#exp_avg").slice(0, first, end).contiguous();
    TRIREME_ASSIGN_OR_RETURN(
        WrittenFile written,
        write_tensor_file(files,
                          join_path(folder, absl::StrCat("ps-", server, "-of-2.safetensors")),
                          {to_save(name, contents), to_save(name + "#exp_avg", slot)}));
    for (SavedTensor& tensor : written.tensors) tensor.file = server;
    manifest.files.push_back(written.file);
    matrix.shards.push_back({first, end - first, written.tensors[0], {written.tensors[1]}, 5});
  }
  manifest.variables.push_back(matrix);

  std::vector<TensorToSave> tensors;
  for (const char* name : {"bias", "count", "nothing"}) {
    tensors.push_back(to_save(name, values.at(name)));
  }
  TRIREME_ASSIGN_OR_RETURN(
      WrittenFile program,
      write_tensor_file(files, join_path(folder, "program.safetensors"), tensors));
  manifest.files.push_back(program.file);
  for (size_t i = 0; i < tensors.size(); ++i) {
    SavedVariable variable;
    variable.name = tensors[i].name;
    variable.dtype = tensors[i].dtype;
    variable.sizes = tensors[i].sizes;
    program.tensors[i].file = 2;
    variable.shards = {{0, variable.rows(), program.tensors[i], {}, 0}};
    manifest.variables.push_back(variable);
  }
  return manifest;
}

// Saves the sample as a new checkpoint and returns its folder.
inline absl::StatusOr<std::string> save_sample(Files& files, const std::string& directory,
                                               uint64_t step) {
  CheckpointDirectory checkpoints(files, directory);
  TRIREME_RETURN_IF_ERROR(checkpoints.remove_unfinished());
  TRIREME_ASSIGN_OR_RETURN(const std::string folder, checkpoints.begin(step));
  TRIREME_ASSIGN_OR_RETURN(const Manifest manifest, write_sample_files(files, folder, step));
  TRIREME_RETURN_IF_ERROR(checkpoints.commit(folder, manifest));
  return folder;
}

// Expects that the folder is a whole checkpoint with the values of this step.
inline void expect_sample(Files& files, const std::string& folder, uint64_t step) {
  const auto reader = CheckpointReader::open(files, folder);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const absl::Status verified = (*reader)->verify();
  ASSERT_TRUE(verified.ok()) << verified;
  EXPECT_EQ((*reader)->manifest().step, step);
  std::map<std::string, at::Tensor> values = sample_values(step);
  for (const SavedVariable& variable : (*reader)->manifest().variables) {
    EXPECT_TRUE(value_or_throw((*reader)->read(variable)).equal(values.at(variable.name)))
        << variable.name;
    for (size_t i = 0; i < variable.slots.size(); ++i) {
      const std::string name = absl::StrCat(variable.name, "#", variable.slots[i]);
      EXPECT_TRUE(value_or_throw((*reader)->read_slot(variable, static_cast<int>(i)))
                      .equal(values.at(name)))
          << name;
    }
  }
}

}  // namespace trireme::internal
