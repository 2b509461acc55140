// A folder: modules found in every layout, files split and absent, names missing and unknown.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/modules.h"
#include "checkpoints/tiny_model.h"

namespace moeblas::test {
namespace {

using checkpoint::Architecture;
using checkpoint::Checkpoint;
using checkpoint::Experts;
using checkpoint::Module;

// The bytes of a matrix, row by row.
std::string bytes_of(const TensorView& view) {
  std::string bytes;
  const int64_t row = view.shape.back() * static_cast<int64_t>(size_of(view.dtype));
  const auto* data = static_cast<const char*>(view.data);
  for (int64_t r = 0; r < view.shape[0]; ++r) {
    bytes.append(data + r * view.strides[0] * static_cast<int64_t>(size_of(view.dtype)),
                 static_cast<size_t>(row));
  }
  return bytes;
}

// All experts' floats, in whatever layout.
std::string bytes_of(const Experts& experts) {
  std::string bytes;
  for (const Quantized& expert : experts.separate) bytes += bytes_of(expert.codes);
  if (!experts.stack) return bytes;
  const TensorView& stack = experts.stack->codes;
  for (int64_t e = 0; e < stack.shape[0]; ++e) {
    const auto step = stack.strides[0] * static_cast<int64_t>(size_of(stack.dtype));
    bytes += bytes_of(TensorView(static_cast<const char*>(stack.data) + e * step, stack.dtype,
                                 Shape{stack.shape[1], stack.shape[2]},
                                 Shape{stack.strides[1], stack.strides[2]}));
  }
  return bytes;
}

Checkpoint tiny_checkpoint(const Tiny& tiny, Aligned& memory) {
  memory = Aligned(safetensors(tensors(tiny)));
  return in_memory(config_text(tiny), memory);
}

TEST(Checkpoint, ExpertsAreTheSameInEveryLayout) {
  Aligned separate_file(""), stacked_file(""), mlx_file("");
  const Checkpoint separate = tiny_checkpoint({.layout = Layout::separate}, separate_file);
  const Checkpoint stacked = tiny_checkpoint({.layout = Layout::stacked}, stacked_file);
  const Checkpoint mlx = tiny_checkpoint({.layout = Layout::mlx}, mlx_file);
  for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
    const Shape shape{2, 16, 16};
    const Experts a = separate.experts("model.layers.0.mlp", projection, shape);
    const Experts b = stacked.experts("model.layers.0.mlp", projection, shape);
    const Experts c = mlx.experts("model.layers.0.mlp", projection, shape);
    ASSERT_EQ(a.separate.size(), 2u);
    ASSERT_TRUE(b.stack && c.stack);
    EXPECT_EQ(c.stack->spec.mode, Mode::dense);
    EXPECT_EQ(b.stack->codes.shape, shape);
    EXPECT_EQ(bytes_of(a), bytes_of(c));
    EXPECT_EQ(bytes_of(b), bytes_of(c));
  }
}

TEST(Checkpoint, ReadsEveryModeAndArchitecture) {
  for (const Architecture architecture : {Architecture::olmoe, Architecture::qwen3_moe}) {
    for (const QuantSpec spec :
         {QuantSpec{Mode::affine, 2, 32}, QuantSpec{Mode::affine, 3, 32},
          QuantSpec{Mode::affine, 4, 16}, QuantSpec{Mode::affine, 5, 32},
          QuantSpec{Mode::affine, 6, 16}, QuantSpec{Mode::affine, 8, 32}, QuantSpec{Mode::mxfp4},
          QuantSpec{Mode::mxfp8}, QuantSpec{Mode::nvfp4}}) {
      const Tiny tiny{.architecture = architecture,
                      .layout = Layout::mlx,
                      .spec = spec,
                      .layers = 2,
                      .hidden = 32,
                      .attention_bias = true};
      Aligned memory("");
      const Checkpoint c = tiny_checkpoint(tiny, memory);
      EXPECT_NO_THROW(read_all(c));
      EXPECT_EQ(c.weight("lm_head", {3, 32}).spec, spec.resolved());
      EXPECT_EQ(c.bias("model.layers.1.self_attn.k_proj", 16).shape, Shape({16}));
    }
  }
}

TEST(Checkpoint, AConfigMayOverrideModules) {
  const QuantSpec eight{Mode::affine, 8, 16}, four{Mode::affine, 4, 16};
  std::vector<Blob> blobs = tensors({.spec = four});
  const std::string gate = "model.layers.0.mlp.gate";
  for (const Blob& blob : tensors({.spec = eight})) {
    if (!blob.name.starts_with(gate + ".")) continue;
    *std::ranges::find(blobs, blob.name, &Blob::name) = blob;
  }
  const Aligned file(safetensors(blobs));
  std::string config = config_text({.spec = four});
  const std::string plain = R"("mode":"affine")";
  const size_t at = config.find(plain) + plain.size();
  const auto with = [&](const std::string& text) {
    return in_memory(std::string(config).insert(at, ",\"" + gate + "\":" + text), file);
  };
  EXPECT_EQ(with(R"({"group_size":16,"bits":8})").weight(gate, {2, 16}).spec, eight);
  EXPECT_EQ(error_of([&] { with("false").weight(gate, {2, 16}); }),
            "config.json: quantization." + gate + ": is false, but there is " + gate + ".scales");
  // Read as four bits, the eight-bit codes are a matrix twice as wide, for which scales are short.
  const std::string message = error_of([&] { in_memory(config, file).weight(gate, {2, 16}); });
  EXPECT_TRUE(message.starts_with("model.safetensors: " + gate + ": [dequantize] scales has shape"))
      << message;
}

TEST(Checkpoint, FilesWhoseDataIsNotAligned) {
  const Tiny tiny{.layout = Layout::mlx, .spec = QuantSpec{Mode::affine, 4, 16}};
  const Aligned odd(safetensors(tensors(tiny), /*padded=*/false));
  const Checkpoint c = in_memory(config_text(tiny), odd);
  EXPECT_NO_THROW(read_all(c));
  EXPECT_EQ(c.weight("lm_head", {3, 16}).codes.dtype, DType::u8);
}

// The error of one module after a change to the tiny quantized model's tensors.
std::string error_after(const std::function<void(std::vector<Blob>&)>& change) {
  const Tiny tiny{.layout = Layout::mlx, .spec = QuantSpec{Mode::affine, 4, 16}};
  std::vector<Blob> blobs = tensors(tiny);
  change(blobs);
  const Aligned file(safetensors(blobs));
  return error_of([&] { in_memory(config_text(tiny), file).weight("lm_head", {3, 16}); });
}
Blob& find(std::vector<Blob>& blobs, const std::string& name) {
  return *std::ranges::find(blobs, name, &Blob::name);
}

TEST(Checkpoint, RefusesModulesThatDoNotFit) {
  EXPECT_EQ(error_after([](auto&) {}), "");
  EXPECT_EQ(error_after([](auto& b) { find(b, "lm_head.weight").name = "x"; }),
            "config.json: lm_head.weight: is missing");
  EXPECT_EQ(error_after([](auto& b) { find(b, "lm_head.scales").name = "x"; }),
            "model.safetensors: lm_head.biases: is there without scales");
  EXPECT_EQ(error_after([](auto& b) { find(b, "lm_head.biases").name = "lm_head.zeros"; }),
            "model.safetensors: lm_head.zeros: is unknown; a module has weight, scales, biases and "
            "bias");
  EXPECT_EQ(error_after([](auto& b) {
              find(b, "lm_head.biases").name = "x";
              find(b, "lm_head.scales").name = "y";
            }),
            "model.safetensors: lm_head.weight: has dtype uint32, expected float32, float16 or "
            "bfloat16");
  EXPECT_EQ(error_after([](auto& b) { find(b, "lm_head.weight").shape = {1, 6}; }),
            "model.safetensors: lm_head: [dequantize] scales has shape (3, 1), expected (1, 3) for "
            "affine 4-bit, group_size 16, K = 48");
  const Tiny tiny{.layout = Layout::mlx};
  Aligned memory("");
  const Checkpoint c = tiny_checkpoint(tiny, memory);
  EXPECT_EQ(error_of([&] { c.weight("lm_head", {3, 32}); }),
            "model.safetensors: lm_head.weight: has shape [3, 16], expected [3, 32]");
  EXPECT_EQ(error_of([&] { c.tensor("model.norm.weight", {15}); }),
            "model.safetensors: model.norm.weight: has shape [16], expected [15]");
  EXPECT_EQ(
      error_of([&] { c.experts("model.layers.0.mlp", "up_proj", {3, 16, 16}); }),
      "model.safetensors: model.layers.0.mlp.switch_mlp.up_proj.weight: has shape [2, 16, 16], "
      "expected [3, 16, 16]");
  EXPECT_FALSE(c.bias("lm_head", 3));
}

TEST(Checkpoint, RefusesQuantizedTensorsWithoutSettings) {
  const Aligned file(safetensors(tensors({.spec = QuantSpec{Mode::affine, 4, 16}})));
  EXPECT_EQ(error_of([&] { in_memory(config_text({}), file).weight("lm_head", {3, 16}); }),
            "config.json: quantization: is missing, but there is lm_head.scales");
}

TEST(Checkpoint, NamesWhatIsMissing) {
  Tiny tiny{.layers = 2};
  std::vector<Blob> blobs = tensors(tiny);
  const auto drop = [&](const std::string& name) {
    blobs.erase(std::ranges::find(blobs, name, &Blob::name));
  };
  drop("model.layers.1.mlp.experts.1.up_proj.weight");
  drop("model.norm.weight");
  for (const char* p : {"gate", "up", "down"}) {
    for (const char* e : {"0", "1"}) {
      drop(std::string("model.layers.0.mlp.experts.") + e + "." + p + "_proj.weight");
    }
  }
  const Aligned file(safetensors(blobs));
  const Checkpoint c = in_memory(config_text(tiny), file);
  EXPECT_EQ(c.missing(), (std::vector<std::string>{"model.layers.0.mlp.experts.*.gate_proj.weight",
                                                   "model.layers.0.mlp.experts.*.up_proj.weight",
                                                   "model.layers.0.mlp.experts.*.down_proj.weight",
                                                   "model.layers.1.mlp.experts.1.up_proj.weight",
                                                   "model.norm.weight"}));
  EXPECT_EQ(error_of([&] { c.require_complete(); }),
            "config.json: model.layers.0.mlp.experts.*.gate_proj.weight: is missing; so is "
            "model.layers.0.mlp.experts.*.up_proj.weight, "
            "model.layers.0.mlp.experts.*.down_proj.weight, "
            "model.layers.1.mlp.experts.1.up_proj.weight and 1 more");
}

TEST(Checkpoint, NamesWhatIsUnknown) {
  for (const Layout layout : {Layout::separate, Layout::stacked, Layout::mlx}) {
    Tiny tiny{.layout = layout};
    std::vector<Blob> blobs = tensors(tiny);
    const Aligned whole(safetensors(blobs));
    EXPECT_TRUE(in_memory(config_text(tiny), whole).unknown().empty());
    for (const char* name : {"model.layers.0.mlp.experts.02.up_proj.weight",
                             "model.layers.0.mlp.experts.2.up_proj.weight",
                             "model.layers.1.input_layernorm.weight", "model.norm.bias2"}) {
      blobs.push_back({name, "I8", {0}, ""});
    }
    const Aligned more(safetensors(blobs));
    EXPECT_EQ(in_memory(config_text(tiny), more).unknown().size(), 4u);
  }
  // A head beside tied embeddings is what some writers store twice.
  const Aligned head(safetensors(tensors({})));
  EXPECT_TRUE(in_memory(config_text({.tied = true}), head).unknown().empty());
}

TEST(Checkpoint, ShardsAreFoundByTheirHeaders) {
  const Folder folder;
  const std::vector<Blob> blobs = tensors({});
  const auto half = blobs.begin() + static_cast<std::ptrdiff_t>(blobs.size() / 2);
  write_file(folder / "config.json", config_text({}));
  write_file(folder / "model-00001-of-00002.safetensors", safetensors({blobs.begin(), half}));
  // An index that names neither file correctly does not matter, as long as nothing is missing.
  write_file(folder / "model.safetensors.index.json",
             R"({"weight_map":{"model.norm.weight":"model-00007-of-00009.safetensors"}})");
  const std::string message = error_of([&] { Checkpoint::open(folder.path()).require_complete(); });
  EXPECT_TRUE(message.starts_with(folder.path().string() + ": model.")) << message;
  EXPECT_NE(message.find("is missing"), std::string::npos) << message;

  write_file(folder / "model-00002-of-00002.safetensors", safetensors({half, blobs.end()}));
  EXPECT_NO_THROW(read_all(Checkpoint::open(folder.path())));
  write_file(folder / "model-00002-of-00002.safetensors",
             safetensors({half, std::ranges::find(blobs, "model.norm.weight", &Blob::name)}));
  EXPECT_NE(error_of([&] { Checkpoint::open(folder.path()).require_complete(); })
                .find("model.norm.weight: is missing; the index says that it is in "
                      "model-00007-of-00009.safetensors"),
            std::string::npos);
  write_file(folder / "model.safetensors", safetensors({blobs[0]}));
  EXPECT_NE(error_of([&] { Checkpoint::open(folder.path()); }).find("is also in"),
            std::string::npos);
}

TEST(Checkpoint, FoldersThatAreNone) {
  const Folder folder;
  EXPECT_NE(error_of([&] { Checkpoint::open(folder / "absent"); }).find("No such file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Checkpoint::open(folder.path()); }).find("holds no model*.safetensors"),
            std::string::npos);
  write_file(folder / "model.safetensors", safetensors(tensors({})));
  EXPECT_NE(error_of([&] { Checkpoint::open(folder.path()); }).find("config.json: "),
            std::string::npos);
}

TEST(Checkpoint, DemoModelsAreComplete) {
  for (const char* name : {"kjv-olmoe-8m", "kjv-olmoe-8m-4bit"}) {
    const Checkpoint c = Checkpoint::open(std::filesystem::path(MOEBLAS_MODELS_DIR) / name);
    EXPECT_NO_THROW(read_all(c)) << name;
  }
}

}  // namespace
}  // namespace moeblas::test
