// Files that are missing, damaged or not of the expected form. The error names the file, the place
// in it, and what was expected there, and records that are not valid can be left out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "trireme/base/sanitizer.h"
#include "trireme/data/dataset.h"
#include "trireme/data/record_reader.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class BrokenInput : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string write(const std::string& name, const std::string& contents) const {
    std::ofstream(path(name), std::ios::binary) << contents;
    return path(name);
  }
  // Returns the contents of a file that TensorFlow or pyarrow wrote.
  static std::string contents_of(const std::string& name) {
    std::ifstream file(std::string(DATA_FOLDER) + "/" + name, std::ios::binary);
    EXPECT_TRUE(file.good()) << name;
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Returns the places at which the records of a TFRecord file begin.
  static std::vector<size_t> places_of(const std::string& records) {
    std::vector<size_t> places;
    for (size_t place = 0; place < records.size();) {
      places.push_back(place);
      uint64_t length = 0;
      std::memcpy(&length, records.data() + place, sizeof(length));
      place += 8 + 4 + length + 4;
    }
    return places;
  }

  // Reads all elements. Returns the numbers in their first tensors.
  std::vector<int64_t> read(const Dataset& dataset) {
    std::vector<int64_t> numbers;
    Iterator iterator = dataset.iterator();
    while (const auto element = iterator.next_optional()) {
      numbers.push_back((*element)[0].item<int64_t>());
    }
    return numbers;
  }
  std::string error_of_reading(const std::function<Dataset()>& dataset) {
    return error_text([&] { read(dataset()); });
  }
  // Number of records that readers have left out since the test began.
  uint64_t left_out() const { return internal::bad_records() - left_out_before_; }

  const TemporaryFolder folder_;
  const Column id_{.name = "id", .dtype = torch::kLong};
  const uint64_t left_out_before_ = internal::bad_records();
};

TEST_F(BrokenInput, ATruncatedTfRecord) {
  const std::string records = contents_of("tensorflow/a.tfrecord");
  const std::vector<size_t> places = places_of(records);
  ASSERT_EQ(places.size(), 6);
  // Cuts off the end of the last record, all of it but 5 bytes, and its checksum.
  for (const size_t size : {records.size() - 10, places.back() + 5, records.size() - 4}) {
    const std::string file = write("cut.tfrecord", records.substr(0, size));
    EXPECT_THAT(error_of_reading([&] { return Dataset::tf_records(file, {.columns = {id_}}); }),
                AllOf(HasSubstr(file + "': byte " + std::to_string(places.back())),
                      HasSubstr("the file ends in the middle of a record")))
        << size;
  }
  const std::string file = write("cut.tfrecord", records.substr(0, records.size() - 10));
  EXPECT_THAT(read(Dataset::tf_records(file, {.columns = {id_}, .skip_bad_records = true})),
              ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(left_out(), 1);
}

TEST_F(BrokenInput, ADamagedTfRecord) {
  std::string records = contents_of("tensorflow/a.tfrecord");
  const size_t place = places_of(records)[2];
  records[place + 20] ^= 0x10;
  const std::string file = write("damaged.tfrecord", records);
  EXPECT_THAT(error_of_reading([&] { return Dataset::tf_records(file, {.columns = {id_}}); }),
              AllOf(HasSubstr(file + "': byte " + std::to_string(place)), HasSubstr("checksum")));
  EXPECT_THAT(read(Dataset::tf_records(file, {.columns = {id_}, .skip_bad_records = true})),
              ElementsAre(0, 1, 3, 4, 5));
  EXPECT_EQ(left_out(), 1);
}

TEST_F(BrokenInput, AFeatureOfAnotherType) {
  const std::string file = write("a.tfrecord", contents_of("tensorflow/a.tfrecord"));
  EXPECT_THAT(
      error_of_reading([&] { return Dataset::tf_records(file, {.columns = {{.name = "id"}}}); }),
      AllOf(HasSubstr(file), HasSubstr("byte 0"), HasSubstr("'id'"), HasSubstr("float")));
  EXPECT_THAT(error_of_reading([&] {
                return Dataset::tf_records(file, {.columns = {{.name = "weights", .sizes = {4}}}});
              }),
              AllOf(HasSubstr(file), HasSubstr("'weights'"), HasSubstr("3"), HasSubstr("4")));
}

TEST_F(BrokenInput, ACsvLineOfTheWrongWidth) {
  const std::string file = write("wide.csv", "id,score\n1,0.5\n2,0.5,7\n3\n4,0.5\n");
  const Column score{.name = "score"};
  EXPECT_THAT(
      error_of_reading([&] {
        return Dataset::csv(file, {.columns = {id_, score}});
      }),
      AllOf(HasSubstr(file), HasSubstr("line 3 (byte 15)"), HasSubstr("has 3 fields, expected 2")));
  EXPECT_THAT(read(Dataset::csv(file, {.columns = {id_, score}, .skip_bad_records = true})),
              ElementsAre(1, 4));
  EXPECT_EQ(left_out(), 2);
}

TEST_F(BrokenInput, ACsvFieldThatIsNotANumber) {
  const std::string file = write("words.csv", "id,score\n1,0.5\n2,high\n,0.5\n4,0.5\n");
  const Column score{.name = "score"};
  EXPECT_THAT(error_of_reading([&] {
                return Dataset::csv(file, {.columns = {id_, score}});
              }),
              AllOf(HasSubstr(file), HasSubstr("line 3"), HasSubstr("'score'"), HasSubstr("'high'"),
                    HasSubstr("float32")));
  EXPECT_THAT(read(Dataset::csv(file, {.columns = {id_, score}, .skip_bad_records = true})),
              ElementsAre(1, 4));
  EXPECT_EQ(left_out(), 2);
}

TEST_F(BrokenInput, ACsvFileWithOtherNames) {
  const std::string first = write("1.csv", "id,score\n1,0.5\n");
  const std::string second = write("2.csv", "id,price\n2,0.5\n");
  const Column score{.name = "score"};
  EXPECT_THAT(error_of_reading([&] {
                return Dataset::csv(path("*.csv"), {.columns = {id_, score}});
              }),
              AllOf(HasSubstr(second), HasSubstr("score"), HasSubstr("price")));
  EXPECT_THAT(error_of_reading([&] {
                return Dataset::csv(second, {.columns = {id_, score}});
              }),
              AllOf(HasSubstr(second), HasSubstr("does not have the columns 'score'")));
}

TEST_F(BrokenInput, ALineThatIsTooLong) {
  const std::string file = write("long.txt", "1\n22\n333333333\n4\n");
  EXPECT_THAT(error_text([&] {
                Iterator lines = Dataset::text_lines(file, {.bytes = 8}).iterator();
                while (lines.next_optional()) {
                }
              }),
              AllOf(HasSubstr(file), HasSubstr("line 3"), HasSubstr("9"), HasSubstr("8")));
}

TEST_F(BrokenInput, AMissingFile) {
  const std::string file = path("missing");
  const std::vector<Column> columns = {id_};
  for (const auto& dataset : std::vector<std::function<Dataset()>>{
           [&] { return Dataset::text_lines(file); },
           [&] { return Dataset::csv(file, {.columns = columns}); },
           [&] { return Dataset::csv(file); },
           [&] { return Dataset::tf_records(file, {.columns = columns}); },
           [&] { return Dataset::safetensors(file); },
           [&] {
             return Dataset::tf_records({std::vector<std::string>{file}}, {.columns = columns});
           },
       }) {
    EXPECT_THAT(error_of_reading(dataset), AllOf(HasSubstr(file), HasSubstr("No such file")));
  }
  EXPECT_THAT(error_of_reading([&] { return Dataset::text_lines(path("*.none")); }),
              HasSubstr(path("*.none")));
}

// A file that vanishes after the dataset was made is an error of the iterator.
TEST_F(BrokenInput, AFileThatIsRemoved) {
  const std::string file = write("ids.csv", "id\n1\n");
  const Dataset dataset = Dataset::csv(file, {.columns = {id_}, .skip_bad_records = true});
  EXPECT_THAT(read(dataset), ElementsAre(1));
  std::filesystem::remove(file);
  EXPECT_THAT(error_text([&] { read(dataset); }),
              AllOf(HasSubstr(file), HasSubstr("No such file")));
}

TEST_F(BrokenInput, ADamagedParquetPage) {
  if (kSanitized) GTEST_SKIP() << "ThreadSanitizer does not know how Arrow's threads wait";
  std::string contents = contents_of("pyarrow/a.parquet");
  const std::string whole = write("whole.parquet", contents);
  try {
    EXPECT_EQ(read(Dataset::parquet(whole, {.columns = {id_}})).size(), 6);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUnimplemented) GTEST_SKIP() << error.what();
    throw;
  }
  contents[1068] ^= 0x10;  // The data of column "id" in row group 1 ends at byte 1072.
  const std::string damaged = write("damaged.parquet", contents);
  EXPECT_THAT(
      error_of_reading([&] { return Dataset::parquet(damaged, {.columns = {id_}}); }),
      AllOf(HasSubstr(damaged), HasSubstr("row group 1, column 'id'"), HasSubstr("checksum")));
  const std::string cut = write("cut.parquet", contents.substr(0, contents.size() / 2));
  EXPECT_THAT(error_of_reading([&] { return Dataset::parquet(cut, {.columns = {id_}}); }),
              HasSubstr(cut));
}

}  // namespace
}  // namespace trireme
