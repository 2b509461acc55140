// A folder of floats becomes MLX's layout: the same bytes from every layout, in every mode.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantize.h"
#include "checkpoints/tiny_model.h"

namespace moeblas::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Architecture;
using checkpoint::Checkpoint;
using checkpoint::quantize_checkpoint;
using checkpoint::QuantizeOptions;
using checkpoint::Safetensors;

std::string bytes_of(const Safetensors& file, const checkpoint::Tensor& tensor) {
  return {static_cast<const char*>(file.view(tensor).data), static_cast<size_t>(tensor.bytes)};
}

// Name by name: type, shape and bytes.
void expect_tensors(const fs::path& path, const std::vector<Blob>& expected) {
  const auto file = Safetensors::open(path);
  EXPECT_EQ(file.tensors().size(), expected.size());
  for (const Blob& blob : expected) {
    const checkpoint::Tensor* tensor = file.find(blob.name);
    ASSERT_NE(tensor, nullptr) << blob.name;
    EXPECT_EQ(tensor->type->name, blob.type) << blob.name;
    EXPECT_EQ(tensor->shape, blob.shape) << blob.name;
    EXPECT_TRUE(bytes_of(file, *tensor) == blob.data) << blob.name;
  }
}

nlohmann::json json_of(const fs::path& path) { return nlohmann::json::parse(read_file(path)); }

TEST(Quantize, TheDemoModelEqualsItsQuantizedForm) {
  const fs::path models = MOEBLAS_MODELS_DIR;
  const Folder folder;
  const auto result =
      quantize_checkpoint(models / "kjv-olmoe-8m", folder / "out", {.spec = {Mode::affine, 4, 64}});
  const auto golden = Safetensors::open(models / "kjv-olmoe-8m-4bit" / "model.safetensors");
  std::vector<Blob> expected;
  for (const auto& tensor : golden.tensors()) {
    expected.push_back({tensor.name, tensor.type->name, tensor.shape, bytes_of(golden, tensor)});
  }
  expect_tensors(folder / "out" / "model.safetensors", expected);
  EXPECT_EQ(result.tensors, expected.size());
  EXPECT_EQ(result.parameters, 8215680u);
  EXPECT_EQ(json_of(folder / "out" / "config.json"),
            json_of(models / "kjv-olmoe-8m-4bit" / "config.json"));
}

TEST(Quantize, EveryModeFromEveryLayout) {
  for (const QuantSpec spec : {QuantSpec{Mode::affine, 2, 32}, QuantSpec{Mode::affine, 3, 32},
                               QuantSpec{Mode::affine, 5, 32}, QuantSpec{Mode::affine, 6, 32},
                               QuantSpec{Mode::affine, 8, 16}, QuantSpec{Mode::mxfp4},
                               QuantSpec{Mode::mxfp8}, QuantSpec{Mode::nvfp4}}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const auto expected = tensors({.dtype = dtype, .spec = spec, .layers = 2, .hidden = 32});
      for (const Layout layout : {Layout::separate, Layout::stacked, Layout::mlx}) {
        const Folder folder;
        write_model(folder / "in", {.layout = layout, .dtype = dtype, .layers = 2, .hidden = 32});
        quantize_checkpoint(folder / "in", folder / "out", {.spec = spec});
        expect_tensors(folder / "out" / "model.safetensors", expected);
        EXPECT_NO_THROW(read_all(Checkpoint::open(folder / "out")));
      }
    }
  }
}

// Qwen3-MoE's own rule: routers are affine 8-bit in groups of 64.
TEST(Quantize, QwenKeepsItsRoutersAtEightBits) {
  const Tiny tiny{.architecture = Architecture::qwen3_moe, .hidden = 64};
  const Folder folder;
  write_model(folder / "in", tiny);
  quantize_checkpoint(folder / "in", folder / "out", {.spec = {Mode::mxfp4, 0, 0}});
  const std::string gate = "model.layers.0.mlp.gate";
  const auto checkpoint = Checkpoint::open(folder / "out");
  EXPECT_EQ(checkpoint.weight(gate, {2, 64}).spec, (QuantSpec{Mode::affine, 8, 64}));
  EXPECT_EQ(checkpoint.weight("lm_head", {3, 64}).spec, (QuantSpec{Mode::mxfp4, 4, 32}));
  const nlohmann::json expected = {{"group_size", 32},
                                   {"bits", 4},
                                   {"mode", "mxfp4"},
                                   {gate, {{"group_size", 64}, {"bits", 8}}}};
  const auto config = json_of(folder / "out" / "config.json");
  EXPECT_EQ(config["quantization"], expected);
  EXPECT_EQ(config["quantization_config"], expected);
}

TEST(Quantize, SkippedAndIndivisibleMatricesStayFloats) {
  const Folder folder;
  const Tiny tiny{.hidden = 32, .attention_bias = true};
  write_model(folder / "in", tiny);
  quantize_checkpoint(folder / "in", folder / "skipped",
                      {.spec = {Mode::affine, 4, 32}, .skip = {"*.mlp.*", "lm_head"}});
  const auto skipped = Checkpoint::open(folder / "skipped");
  EXPECT_NO_THROW(read_all(skipped));
  EXPECT_EQ(skipped.weight("lm_head", {3, 32}).spec.mode, Mode::dense);
  EXPECT_EQ(skipped.weight("model.embed_tokens", {3, 32}).spec.mode, Mode::affine);
  EXPECT_EQ(skipped.weight("model.layers.0.mlp.switch_mlp.up_proj", {2, 32, 32}).spec.mode,
            Mode::dense);
  EXPECT_TRUE(skipped.has("model.layers.0.self_attn.q_proj.bias"));

  quantize_checkpoint(folder / "in", folder / "floats", {.spec = {Mode::affine, 4, 64}});
  expect_tensors(folder / "floats" / "model.safetensors",
                 tensors({.layout = Layout::mlx, .hidden = 32, .attention_bias = true}));
}

TEST(Quantize, MatricesOfManyRowsAreQuantizedInParts) {
  const Folder folder;
  const Tiny tiny{.hidden = 16, .vocab = 300000};
  write_model(folder / "in", tiny);
  quantize_checkpoint(folder / "in", folder / "out", {.spec = {Mode::affine, 4, 16}});
  expect_tensors(folder / "out" / "model.safetensors",
                 tensors({.spec = QuantSpec{Mode::affine, 4, 16}, .hidden = 16, .vocab = 300000}));
}

TEST(Quantize, ShardsAndTheirIndex) {
  const Folder folder;
  write_model(folder / "in", {});
  const QuantizeOptions options{.spec = {Mode::affine, 4, 16}, .shard_bytes = 1000};
  const auto result = quantize_checkpoint(folder / "in", folder / "out", options);
  EXPECT_NO_THROW(read_all(Checkpoint::open(folder / "out")));
  const auto index = json_of(folder / "out" / "model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], result.bytes);
  EXPECT_EQ(index["metadata"]["total_parameters"], result.parameters);
  EXPECT_EQ(index["weight_map"].size(), result.tensors);
  size_t files = 0;
  for (const auto& path : checkpoint::weight_files(folder / "out")) {
    const auto file = Safetensors::open(path);
    ++files;
    uint64_t bytes = 0;
    for (const auto& tensor : file.tensors()) {
      EXPECT_EQ(index["weight_map"][tensor.name], path.filename().string());
      bytes += tensor.bytes;
    }
    EXPECT_LE(bytes, 1000u);
  }
  EXPECT_GT(files, 2u);
}

TEST(Quantize, WhatComesAlong) {
  const Folder folder;
  write_model(folder / "in", {});
  write_file(folder / "in" / "config.json",
             config_text({}, R"("_name_or_path":"x","zoo":{"b":1,"a":"é"},)"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "merges.txt", "README.md", "train.py"}) {
    write_file(folder / "in" / name, name);
  }
  quantize_checkpoint(folder / "in", folder / "out/", {.spec = {Mode::affine, 8, 16}});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "out")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"config.json", "generation_config.json", "merges.txt",
                                             "model.safetensors", "model.safetensors.index.json",
                                             "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(read_file(folder / "out" / "merges.txt"), "merges.txt");
  const auto config = json_of(folder / "out" / "config.json");
  EXPECT_FALSE(config.contains("_name_or_path"));
  EXPECT_EQ(config["zoo"], json_of(folder / "in" / "config.json")["zoo"]);
}

TEST(Quantize, RefusesAndLeavesNothing) {
  const Folder folder;
  write_model(folder / "in", {});
  write_model(folder / "quantized", {.spec = QuantSpec{Mode::affine, 4, 16}});
  std::vector<Blob> blobs = tensors({});
  const auto with = [&](const std::string& name, const std::vector<Blob>& contents) {
    fs::create_directory(folder / name);
    write_file(folder / name / "config.json", config_text({}));
    write_file(folder / name / "model.safetensors", safetensors(contents));
  };
  with("incomplete", {blobs.begin() + 1, blobs.end()});
  std::vector<Blob> more = blobs;
  more.push_back({"rotary.inv_freq", "BF16", {0}, ""});
  with("unknown", more);
  Blob& last =
      *std::ranges::find(blobs, "model.layers.0.mlp.experts.1.up_proj.weight", &Blob::name);
  last.data.replace(last.data.size() - 2, 2, "\x80\x7f");  // infinity
  with("infinite", blobs);

  const auto refused = [&](const std::string& in, const QuantizeOptions& options) {
    const std::string message =
        error_of([&] { quantize_checkpoint(folder / in, folder / "out", options); });
    EXPECT_FALSE(fs::exists(folder / "out")) << message;
    EXPECT_FALSE(fs::exists(folder / "out.partial")) << message;
    return message;
  };
  const QuantizeOptions four{.spec = {Mode::affine, 4, 16}};
  EXPECT_NE(refused("quantized", four).find("quantization: says it is quantized already"),
            std::string::npos);
  EXPECT_NE(refused("incomplete", four).find("lm_head.weight: is missing"), std::string::npos);
  EXPECT_NE(refused("unknown", four).find("rotary.inv_freq: is no tensor of this architecture"),
            std::string::npos);
  EXPECT_NE(refused("infinite", four)
                .find("model.layers.0.mlp.switch_mlp.up_proj: holds a value that is not finite"),
            std::string::npos);
  EXPECT_NE(refused("in", {.spec = {Mode::affine, 4, 16}, .skip = {"*.router"}})
                .find("skip: \"*.router\" matches no matrix"),
            std::string::npos);
  EXPECT_NE(refused("in", {.spec = {Mode::affine, 7, 16}}).find("bits is 7"), std::string::npos);
  EXPECT_NE(refused("in", {.spec = {Mode::affine, 3, 16}}).find("[quantize]"), std::string::npos);

  fs::create_directory(folder / "out.partial");
  EXPECT_NE(error_of([&] {
              quantize_checkpoint(folder / "in", folder / "out", four);
            }).find("out.partial: exists: it is being written"),
            std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "out.partial")) << "it may be another run's";
  EXPECT_NE(error_of([&] {
              quantize_checkpoint(folder / "in", folder / "quantized", four);
            }).find("exists already"),
            std::string::npos);
}

}  // namespace
}  // namespace moeblas::test
