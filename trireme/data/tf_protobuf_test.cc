// Compares the decoder with protobuf on random messages, whose definition is made here.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/tf_example.h"
#include "trireme/data/tf_test_bytes.h"

namespace trireme::internal {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kExampleDef[] = R"(
  name: "example.proto" syntax: "proto3"
  message_type { name: "BytesList"
    field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
  message_type { name: "FloatList"
    field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
  message_type { name: "Int64List"
    field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
  message_type { name: "Feature"
    field { name: "a" number: 1 type_name: "BytesList" label: LABEL_OPTIONAL oneof_index: 0 }
    field { name: "b" number: 2 type_name: "FloatList" label: LABEL_OPTIONAL oneof_index: 0 }
    field { name: "c" number: 3 type_name: "Int64List" label: LABEL_OPTIONAL oneof_index: 0 }
    oneof_decl { name: "kind" } }
  message_type { name: "Features"
    field { name: "feature" number: 1 type_name: ".Features.FeatureEntry" label: LABEL_REPEATED }
    nested_type { name: "FeatureEntry" options { map_entry: true }
      field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "value" number: 2 type_name: ".Feature" label: LABEL_OPTIONAL } } }
  message_type { name: "Example"
    field { name: "features" number: 1 type_name: "Features" label: LABEL_OPTIONAL } })";

// Returns the message in a field, which is not repeated.
const Message& message_in(const Message& message, int number) {
  return message.GetReflection()->GetMessage(message,
                                             message.GetDescriptor()->FindFieldByNumber(number));
}

// Reads tf.Examples with protobuf.
class ProtobufExamples {
 public:
  ProtobufExamples() {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kExampleDef, &file));
    const auto* built = pool_.BuildFile(file);
    example_.reset(factory_.GetPrototype(built->FindMessageTypeByName("Example"))->New());
  }

  // Returns the kind and the values of the feature 'x' as text, or "invalid".
  std::string read(const std::string& bytes) {
    if (!example_->ParseFromString(bytes)) return "invalid";
    const Message& features = message_in(*example_, 1);
    const FieldDescriptor* map = features.GetDescriptor()->FindFieldByNumber(1);
    std::string found = "0:";
    for (int i = 0; i < features.GetReflection()->FieldSize(features, map); ++i) {
      const Message& entry = features.GetReflection()->GetRepeatedMessage(features, map, i);
      const FieldDescriptor* key = entry.GetDescriptor()->FindFieldByNumber(1);
      if (entry.GetReflection()->GetString(entry, key) != "x") continue;
      found = to_text(message_in(entry, 2));
    }
    return found;
  }

 private:
  static std::string to_text(const Message& feature) {
    const auto* kind = feature.GetReflection()->GetOneofFieldDescriptor(
        feature, feature.GetDescriptor()->oneof_decl(0));
    if (kind == nullptr) return "0:";
    const Message& list = message_in(feature, kind->number());
    const FieldDescriptor* value = list.GetDescriptor()->FindFieldByNumber(1);
    std::string text = std::to_string(kind->number()) + ":";
    for (int i = 0; i < list.GetReflection()->FieldSize(list, value); ++i) {
      if (kind->number() == 1) text += list.GetReflection()->GetRepeatedString(list, value, i);
      if (kind->number() == 2) {
        text += std::to_string(list.GetReflection()->GetRepeatedFloat(list, value, i));
      }
      if (kind->number() == 3) {
        text += std::to_string(list.GetReflection()->GetRepeatedInt64(list, value, i));
      }
      text += ";";
    }
    return text;
  }

  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_{&pool_};
  std::unique_ptr<Message> example_;
};

// Reads the feature 'x' with the decoder, in the form of ProtobufExamples::read(). The kind is
// known from the one of three schemas that accepts the feature.
std::string read_here(const std::string& bytes) {
  for (const auto dtype : {at::kByte, at::kFloat, at::kLong}) {
    proto::DatasetStep::Files def;
    add_tf_column(def, "x", dtype, {-1})->set_is_text(dtype == at::kByte);
    const auto schema = value_or_throw(TfExampleSchema::make(def.columns()));
    TfExampleRows rows(*schema, 1);
    const std::string fault = rows.add(bytes);
    if (fault.find("missing") != std::string::npos) return "0:";
    if (fault.find("not a valid") != std::string::npos) return "invalid";
    if (fault.find("expected 1") != std::string::npos) return "several texts";
    if (!fault.empty()) continue;
    const at::Tensor values = rows.finish()->columns.at(0).values;
    if (dtype == at::kByte) {
      return "1:" + std::string(static_cast<const char*>(values.const_data_ptr()), values.numel()) +
             ";";
    }
    std::string text = dtype == at::kFloat ? "2:" : "3:";
    for (int64_t i = 0; i < values.numel(); ++i) {
      text += (dtype == at::kFloat ? std::to_string(values.const_data_ptr<float>()[i])
                                   : std::to_string(values.const_data_ptr<int64_t>()[i])) +
              ";";
    }
    return text;
  }
  return "no kind";
}

// Makes random messages of parts that may be repeated, reordered and unknown.
class RandomExamples {
 public:
  std::string example() {
    return parts(2, [&] { return tf_example(parts(4, [&] { return entry(); })); });
  }

 private:
  template <typename Make>
  std::string parts(uint64_t most, const Make& make) {
    std::string bytes;
    for (uint64_t i = random_() % 8 == 0 ? 0 : 1 + random_() % most; i > 0; --i) {
      bytes += make();
      if (random_() % 8 == 0) bytes += tf_varint(9 << 3) + tf_varint(random_());
      if (random_() % 8 == 0) bytes += tf_field(7, "unknown");
    }
    return bytes;
  }
  std::string entry() {
    return tf_field(1, parts(3, [&] {
                      return random_() % 2 == 0 ? tf_field(1, random_() % 4 == 0 ? "y" : "x")
                                                : tf_field(2, parts(3, [&] { return feature(); }));
                    }));
  }
  std::string feature() {
    const bool is_packed = random_() % 2 == 0;
    const uint64_t count = random_() % 4;
    if (random_() % 3 == 0) return tf_texts({"t" + std::to_string(random_() % 100)});
    if (random_() % 2 == 0) return tf_floats(std::vector<float>(count, random_() % 100), is_packed);
    return tf_ints(std::vector<int64_t>(count, random_() >> random_() % 64), is_packed);
  }

  std::mt19937_64 random_{3};
};

TEST(TfExample, ReadsRandomMessagesAsProtobufDoes) {
  ProtobufExamples protobuf;
  RandomExamples examples;
  int features = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string bytes = examples.example();
    const std::string expected = protobuf.read(bytes), read = read_here(bytes);
    ASSERT_NE(expected, "invalid");
    if (read == "several texts") {
      EXPECT_EQ(expected.substr(0, 2), "1:");
    } else {
      EXPECT_EQ(read, expected) << testing::PrintToString(bytes);
    }
    features += read.size() > 2 ? 1 : 0;
  }
  EXPECT_GT(features, 1000);
}

}  // namespace
}  // namespace trireme::internal
