// One file: what is read, and every rule whose breach is refused with file and field.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoints/tiny_model.h"

namespace moeblas::test {
namespace {

using checkpoint::Safetensors;
using checkpoint::Tensor;

std::string parse_error(const std::string& bytes) {
  const Aligned memory(bytes);
  return error_of([&] { Safetensors::parse("f", memory.span()); });
}

std::string entry(const std::string& text) {
  return with_header("{\"t\":{" + text + "}}", "12345678");
}

TEST(Safetensors, ReadsWhatIsThere) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"dtype":"I16","shape":[2,2],"data_offsets":[8,16]},)"
                             R"("none":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]},)"
                             R"("a":{"shape":[2],"dtype":"F32","data_offsets":[0,8]},)"
                             R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[16,17]}} )";
  const Aligned memory(with_header(header, std::string("\0\0\x80\x3f\0\0\0\x40", 8) +
                                               std::string("\1\0\2\0\3\0\xff\xff", 8) + "\7"));
  const auto file = Safetensors::parse("f", memory.span());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "a");  // in the order of their data
  EXPECT_EQ(file.tensors()[1].name, "none");
  EXPECT_EQ(file.tensors()[2].name, "b");
  EXPECT_EQ(file.find("c"), nullptr);

  const TensorView a = file.view(*file.find("a")), b = file.view(*file.find("b"));
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(a.shape, Shape({2}));
  EXPECT_EQ(static_cast<const float*>(a.data)[1], 2.0f);
  EXPECT_EQ(b.shape, Shape({2, 2}));
  EXPECT_EQ(static_cast<const int16_t*>(b.data)[3], -1);
  EXPECT_EQ(file.view(*file.find("none")).shape, Shape({0, 4}));
  EXPECT_EQ(*static_cast<const uint8_t*>(file.view(*file.find("scalar")).data), 7);
}

TEST(Safetensors, ViewsLeadIntoTheFileWhereItIsAligned) {
  const std::vector<Blob> blobs = {{"codes", "U32", {1, 2}, "abcdefgh"},
                                   {"scales", "BF16", {1, 2}, "ijkl"}};
  const Aligned aligned(safetensors(blobs)), odd(safetensors(blobs, false));
  const auto inside = [](const Aligned& memory, const TensorView& view) {
    const auto* data = static_cast<const std::byte*>(view.data);
    return data >= memory.span().data() && data < memory.span().data() + memory.span().size();
  };
  const auto straight = Safetensors::parse("f", aligned.span());
  EXPECT_TRUE(inside(aligned, straight.view(*straight.find("codes"))));
  EXPECT_TRUE(inside(aligned, straight.view(*straight.find("scales"))));
  EXPECT_EQ(straight.view(*straight.find("codes")).dtype, DType::u32);

  const auto shifted = Safetensors::parse("f", odd.span());
  const TensorView codes = shifted.view(*shifted.find("codes"));
  EXPECT_TRUE(inside(odd, codes));
  EXPECT_EQ(codes.dtype, DType::u8);
  EXPECT_EQ(codes.shape, Shape({1, 8}));
  EXPECT_EQ(std::string(static_cast<const char*>(codes.data), 8), "abcdefgh");
  const TensorView scales = shifted.view(*shifted.find("scales"));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(scales.data) % 2, 0u);
  EXPECT_EQ(std::string(static_cast<const char*>(scales.data), 4), "ijkl");
  EXPECT_EQ(shifted.view(*shifted.find("scales")).data, scales.data) << "copied once";
}

TEST(Safetensors, MetadataMayBeNull) {
  EXPECT_EQ(parse_error(with_header(R"({"__metadata__":null})")), "");
  EXPECT_EQ(parse_error(with_header(R"({"__metadata__":{"a":null}})")),
            "f: __metadata__: \"a\" is null, expected a string");
}

TEST(Safetensors, ListsTypesThatNoOperationReads) {
  const Aligned memory(entry(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])"));
  const auto file = Safetensors::parse("f", memory.span());
  EXPECT_EQ(file.tensors()[0].bytes, 8u);
  EXPECT_EQ(error_of([&] { file.view(file.tensors()[0]); }),
            "f: t: no operation reads its dtype F8_E4M3");
  EXPECT_EQ(parse_error(entry(R"("dtype":"F4","shape":[16],"data_offsets":[0,8])")), "");
  EXPECT_EQ(parse_error(entry(R"("dtype":"F4","shape":[15],"data_offsets":[0,8])")),
            "f: t: shape is [15] of F4, no whole number of bytes");
}

TEST(Safetensors, RefusesMoreDimensionsThanAView) {
  const Aligned memory(entry(R"("dtype":"I64","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,8])"));
  const auto file = Safetensors::parse("f", memory.span());
  EXPECT_EQ(error_of([&] { file.view(file.tensors()[0]); }),
            "f: t: has 9 dimensions, expected at most 8");
}

struct Refused {
  std::string bytes;
  std::string message;
};

TEST(Safetensors, RefusesWhatBreaksTheFormat) {
  const std::string good = R"("dtype":"I64","shape":[1],"data_offsets":[0,8])";
  const std::string huge = "18446744073709551615";
  const std::vector<Refused> cases = {
      {"", "header length: the file has 0 bytes, expected at least 8"},
      {"1234567", "header length: the file has 7 bytes, expected at least 8"},
      {std::string(8, '\xff'),
       "header length: is " + huge + ", expected at most 0, the rest of the file"},
      {std::string("\x03\0\0\0\0\0\0\0{}", 10),
       "header length: is 3, expected at most 2, the rest of the file"},
      {std::string("GGUF\x03\0\0\0\0\0\0\0", 12),
       "header length: spells GGUF, another format; expected safetensors"},
      {with_header(""), "header: does not begin with {"},
      {with_header(" {}"), "header: does not begin with {"},
      {with_header("\xef\xbb\xbf{}"), "header: does not begin with {"},
      {with_header("{"), "header: is no JSON at its byte 2"},
      {with_header("{}}"), "header: is no JSON at its byte 3"},
      {with_header(std::string("{}\0", 3)), "header: is no JSON at its byte 3"},
      {with_header("{\"\xff\":{}}"), "header: is no JSON at its byte 3"},
      {with_header("{}", "x"), "data: the tensors end at byte 0, the file has 1 bytes of data"},
      {with_header(R"({"t":1})"), "t: is a number, expected an object"},
      {with_header(R"({"t":null})"), "t: is null, expected an object"},
      {with_header(R"({"t":[]})"), "t: is an array, expected an object"},
      {with_header(R"({"__metadata__":{"a":1}})"),
       "__metadata__: \"a\" is a number, expected a string"},
      {with_header(R"({"__metadata__":{"a":"","a":""}})"), "__metadata__: \"a\" stands here twice"},
      {with_header(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__: stands here twice"},
      {entry(""), "t: has no dtype"},
      {entry(R"("dtype":"I64")"), "t: has no shape"},
      {entry(R"("dtype":"I64","shape":[1])"), "t: has no data_offsets"},
      {entry(good + R"(,"strides":[1])"),
       "t: has a field \"strides\", expected dtype, shape and data_offsets"},
      {entry(good + R"(,"dtype":"I64")"), "t: has two fields dtype"},
      {entry(good + R"(,"shape":[1])"), "t: has two fields shape"},
      {entry(R"("dtype":"Q4","shape":[1],"data_offsets":[0,8])"),
       "t: dtype is \"Q4\", known are F32 F16 BF16 F64 I8 I16 I32 I64 U8 U16 U32 U64 BOOL C64 "
       "F8_E4M3 "
       "F8_E5M2 F8_E8M0 F6_E2M3 F6_E3M2 F4 F8_E4M3FNUZ F8_E5M2FNUZ"},
      {entry(R"("dtype":64,"shape":[1],"data_offsets":[0,8])"),
       "t: dtype is a number, expected a string"},
      {entry(R"("dtype":"I64","shape":1,"data_offsets":[0,8])"),
       "t: shape is or holds a number, expected an array of integers >= 0"},
      {entry(R"("dtype":"I64","shape":[-1],"data_offsets":[0,8])"),
       "t: shape is or holds the negative number -1, expected an array of integers >= 0"},
      {entry(R"("dtype":"I64","shape":[1.0],"data_offsets":[0,8])"),
       "t: shape is or holds the fraction 1.0, expected an array of integers >= 0"},
      {entry(R"("dtype":"I64","shape":[[1]],"data_offsets":[0,8])"),
       "t: shape is or holds an array, expected an array of integers >= 0"},
      {entry(R"("dtype":"I64","shape":["1"],"data_offsets":[0,8])"),
       "t: shape is or holds a string, expected an array of integers >= 0"},
      {entry(R"("dtype":"I64","shape":[)" + huge + R"(],"data_offsets":[0,8])"),
       "t: shape holds " + huge + ", expected at most 2^63 - 1"},
      {entry(R"("dtype":"I64","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"),
       "t: shape is [4294967296, 4294967296, 0] of I64, more than 2^63 - 1 bits"},
      {entry(R"("dtype":"I64","shape":[0,9223372036854775807],"data_offsets":[0,0])"),
       "t: shape is [0, 9223372036854775807] of I64, more than 2^63 - 1 bits"},
      {entry(R"("dtype":"I64","shape":[2305843009213693952,4],"data_offsets":[0,8])"),
       "t: shape is [2305843009213693952, 4] of I64, more than 2^63 - 1 bits"},
      {entry(R"("dtype":"I64","shape":[1],"data_offsets":[0])"),
       "t: data_offsets has 1 numbers, expected 2"},
      {entry(R"("dtype":"I64","shape":[1],"data_offsets":[8,0])"),
       "t: data_offsets is [8, 0], an end before the begin"},
      {entry(R"("dtype":"I64","shape":[2],"data_offsets":[0,16])"),
       "t: data_offsets is [0, 16], but the file has 8 bytes of data"},
      {entry(R"("dtype":"I64","shape":[2],"data_offsets":[0,8])"),
       "t: data_offsets is [0, 8], 8 bytes, but [2] of I64 takes 16"},
      {entry(R"("dtype":"I32","shape":[1],"data_offsets":[4,8])"),
       "t: begins at byte 4 of the data, leaving a hole: expected 0"},
      {entry(R"("dtype":"I32","shape":[1],"data_offsets":[0,4])"),
       "data: the tensors end at byte 4, the file has 8 bytes of data"},
      {with_header("{\"t\":{" + good + "},\"u\":{" + good + "}}", "12345678"),
       "u: begins at byte 0 of the data, in another tensor that ends at 8"},
      {with_header("{\"t\":{" + good + R"(},"t":{"dtype":"I8","shape":[0],"data_offsets":[8,8]}})",
                   "12345678"),
       "t: stands in the header twice"},
  };
  for (const Refused& c : cases) EXPECT_EQ(parse_error(c.bytes), "f: " + c.message);
}

TEST(Safetensors, MessagesHoldNothingThatATerminalObeys) {
  const std::string message =
      parse_error(with_header(R"({"\u001b[31m)" + std::string(500, 'x') + R"(":1})"));
  EXPECT_EQ(message,
            "f: \\x1b[31m" + std::string(115, 'x') + "...: is a number, expected an object");
}

TEST(Safetensors, FilesThatAreNone) {
  const Folder folder;
  EXPECT_NE(error_of([&] { Safetensors::open(folder / "absent"); }).find("cannot be opened"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Safetensors::open(folder.path()); }).find("is no regular file"),
            std::string::npos);
  write_file(folder / "empty", "");
  EXPECT_NE(error_of([&] { Safetensors::open(folder / "empty"); }).find("the file has 0 bytes"),
            std::string::npos);
}

// Deep nesting ends at the first level that the format does not know; long lists are linear.
TEST(Safetensors, LargeHeadersEnd) {
  EXPECT_NE(parse_error(with_header("{\"a\":" + std::string(1 << 20, '['))), "");
  std::string shape = "1";
  for (int i = 0; i < 200000; ++i) shape += ",1";
  EXPECT_EQ(parse_error(entry(R"("dtype":"I64","shape":[)" + shape + R"(],"data_offsets":[0,8])")),
            "");
  std::string many = "{";
  for (int i = 0; i < 50000; ++i) {
    many += "\"" + std::to_string(i) + R"(":{"dtype":"I8","shape":[0],"data_offsets":[0,0]},)";
  }
  many.back() = '}';
  EXPECT_EQ(parse_error(with_header(many)), "");
}

}  // namespace
}  // namespace moeblas::test
