// What the writer writes is read as it was declared; what it has not finished is not read.
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/writer.h"
#include "checkpoints/tiny_model.h"

namespace moeblas::test {
namespace {

using checkpoint::Safetensors;
using checkpoint::SafetensorsWriter;

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Writer, WritesWhatIsReadAgain) {
  const Folder folder;
  SafetensorsWriter writer(folder / "f",
                           {{"odd", DType::u8, {3}},
                            {"words", DType::u32, {2, 1}},
                            {"none", DType::f32, {0, 5}},
                            {"a \"name\"\n", DType::bf16, {1}}},
                           {{"format", "mlx"}});
  writer.write("odd", 2, bytes("c"));
  writer.write("words", 4, bytes("5678"));
  writer.write("a \"name\"\n", 0, bytes("xy"));
  writer.write("words", 0, bytes("1234"));
  writer.write("odd", 0, bytes("ab"));
  writer.finish();

  const auto file = Safetensors::open(folder / "f");
  EXPECT_EQ(file.metadata().at("format"), "mlx");
  const auto text = [&](const std::string& name) {
    const TensorView view = file.view(*file.find(name));
    return std::string(static_cast<const char*>(view.data),
                       static_cast<size_t>(view.numel()) * size_of(view.dtype));
  };
  EXPECT_EQ(text("odd"), "abc");
  EXPECT_EQ(text("words"), "12345678");
  EXPECT_EQ(text("a \"name\"\n"), "xy");
  EXPECT_EQ(file.view(*file.find("words")).shape, Shape({2, 1}));
  EXPECT_EQ(file.view(*file.find("none")).shape, Shape({0, 5}));
  for (const auto& tensor : file.tensors()) {
    EXPECT_EQ(tensor.offset % (static_cast<uint64_t>(tensor.type->bits) / 8), 0u) << tensor.name;
  }
}

TEST(Writer, NothingReadsAFileThatIsNotFinished) {
  const Folder folder;
  {
    SafetensorsWriter writer(folder / "f", {{"t", DType::u8, {4}}}, {});
    EXPECT_NE(error_of([&] { Safetensors::open(folder / "f"); }), "");
    writer.write("t", 0, bytes("abc"));
    EXPECT_EQ(error_of([&] { writer.finish(); }),
              (folder / "f").string() + ": t: has 4 bytes, of which 3 were written");
  }
  EXPECT_EQ(error_of([&] { Safetensors::open(folder / "f"); }),
            (folder / "f").string() + ": header: does not begin with {");
}

TEST(Writer, RefusesWhatWasNotDeclared) {
  const Folder folder;
  write_file(folder / "there", "");
  EXPECT_NE(error_of([&] { SafetensorsWriter(folder / "there", {}, {}); }).find("File exists"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              SafetensorsWriter(folder / "twice", {{"t", DType::u8, {1}}, {"t", DType::u8, {2}}},
                                {});
            }).find("t: is declared twice"),
            std::string::npos);
  SafetensorsWriter writer(folder / "f", {{"t", DType::u8, {4}}}, {});
  EXPECT_NE(error_of([&] { writer.write("u", 0, bytes("a")); }).find("u: was not declared"),
            std::string::npos);
  EXPECT_NE(error_of([&] { writer.write("t", 3, bytes("ab")); }).find("t: has 4 bytes, not 5"),
            std::string::npos);
}

}  // namespace
}  // namespace moeblas::test
