// config.json: what is taken from it, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoints/tiny_model.h"

namespace moeblas::test {
namespace {

using checkpoint::Architecture;
using checkpoint::Config;
using checkpoint::QkNorm;
using checkpoint::Quantization;

// The sizes of OLMoE-1B-7B-0924, as its config.json has them.
const char* const kOlmoe = R"({
  "architectures": ["OlmoeForCausalLM"], "attention_bias": false, "clip_qkv": null,
  "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024,
  "max_position_embeddings": 4096, "model_type": "olmoe", "norm_topk_prob": false,
  "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
  "num_key_value_heads": 16, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 50304
})";

// Those of Qwen3-30B-A3B, with a dense first layer and MLX's quantization.
const char* const kQwen3 = R"({
  "model_type": "qwen3_moe", "attention_bias": false, "decoder_sparse_step": 1,
  "eos_token_id": [151645, 151643], "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
  "max_position_embeddings": 40960, "mlp_only_layers": [0], "moe_intermediate_size": 768,
  "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
  "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "use_sliding_window": false,
  "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 151936,
  "quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4",
    "model.layers.1.mlp.gate": {"group_size": 64, "bits": 8}, "lm_head": false,
    "model.embed_tokens": true, "model.layers.1.self_attn.q_proj": {"mode": "mxfp8"}}
})";

TEST(Config, Olmoe) {
  const Config c = Config::parse("c", kOlmoe);
  EXPECT_EQ(c.architecture, Architecture::olmoe);
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.num_hidden_layers, 16);
  EXPECT_EQ(c.num_attention_heads, 16);
  EXPECT_EQ(c.num_key_value_heads, 16);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.num_experts, 64);
  EXPECT_EQ(c.num_experts_per_tok, 8);
  EXPECT_EQ(c.moe_intermediate_size, 1024);
  EXPECT_EQ(c.vocab_size, 50304);
  EXPECT_EQ(c.max_position_embeddings, 4096);
  EXPECT_FALSE(c.norm_topk_prob);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.qk_norm, QkNorm::all_heads);
  EXPECT_EQ(c.sparse, std::vector<bool>(16, true));
  EXPECT_EQ(c.eos_token_ids, std::vector<int64_t>{50279});
  EXPECT_FALSE(c.clip_qkv);
  EXPECT_FALSE(c.quantization);
}

TEST(Config, Qwen3Moe) {
  const Config c = Config::parse("c", kQwen3);
  EXPECT_EQ(c.architecture, Architecture::qwen3_moe);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.moe_intermediate_size, 768);
  EXPECT_EQ(c.intermediate_size, 6144);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.qk_norm, QkNorm::each_head);
  EXPECT_FALSE(c.sparse[0]);
  EXPECT_TRUE(c.sparse[1]);
  EXPECT_EQ(c.eos_token_ids, (std::vector<int64_t>{151645, 151643}));
  ASSERT_TRUE(c.quantization);
  const Quantization& q = *c.quantization;
  EXPECT_EQ(q.of("model.layers.0.self_attn.k_proj"), (QuantSpec{Mode::mxfp4, 4, 32}));
  // Without a mode, an entry is affine, whatever the rest is.
  EXPECT_EQ(q.of("model.layers.1.mlp.gate"), (QuantSpec{Mode::affine, 8, 64}));
  EXPECT_EQ(q.of("model.layers.1.self_attn.q_proj"), (QuantSpec{Mode::mxfp8, 8, 32}));
  EXPECT_EQ(q.of("model.embed_tokens"), (QuantSpec{Mode::mxfp4, 4, 32}));
  EXPECT_EQ(q.of("lm_head"), std::nullopt);
}

TEST(Config, SparseSteps) {
  Tiny tiny;
  tiny.architecture = Architecture::qwen3_moe;
  tiny.layers = 4;
  const Config c = Config::parse(
      "c",
      config_text(tiny, R"("decoder_sparse_step":2,"mlp_only_layers":[3],"intermediate_size":8,)"));
  EXPECT_EQ(c.sparse, (std::vector<bool>{false, true, false, false}));
}

TEST(Config, AcceptsTheOtherSpellings) {
  std::string text = config_text({});
  text.replace(text.find("num_experts"), 11, "num_local_experts");
  text.replace(text.find("num_key_value_heads"), 19, "unheard_of");
  text.replace(text.find(R"("rope_theta":10000.0,)"), 21, "");
  const Config c = Config::parse("c", text);
  EXPECT_EQ(c.num_experts, 2);
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.rope_theta, 10000);
  // MLX's own duplicate, where the original is missing.
  EXPECT_EQ(
      Config::parse("c", config_text({}, R"("quantization_config":{"bits":8,"group_size":64},)"))
          .quantization->spec,
      (QuantSpec{Mode::affine, 8, 64}));
}

std::string error_with(const std::string& extra) {
  return error_of([&] { Config::parse("c", config_text({}, extra)); });
}
// The tiny config with one value replaced.
std::string error_after(const std::string& from, const std::string& to) {
  std::string text = config_text({});
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return error_of([&] { Config::parse("c", text.replace(at, from.size(), to)); });
}

TEST(Config, RefusesTextThatIsNoJson) {
  EXPECT_EQ(error_of([] { Config::parse("c", ""); }), "c: is no JSON at its byte 1");
  EXPECT_EQ(error_of([] { Config::parse("c", "[]"); }), "c: is an array, expected an object");
  EXPECT_EQ(error_of([] { Config::parse("c", std::string_view("{}\0", 3)); }),
            "c: is no JSON at its byte 3");
  EXPECT_EQ(error_of([] { Config::parse("c", R"({"a":{"b":1,"b":2}})"); }),
            "c: b: stands in one object twice");
  EXPECT_EQ(error_of([] { Config::parse("c", std::string(40, '[')); }),
            "c: has more than 32 levels");
  EXPECT_EQ(error_of([] { Config::parse("c", R"({"a":1e999})"); }),
            "c: holds a number that is out of range");
}

TEST(Config, RefusesWhatIsNotSupported) {
  EXPECT_EQ(error_after(R"("olmoe")", R"("mixtral")"),
            "c: model_type: is \"mixtral\"; supported are olmoe and qwen3_moe");
  EXPECT_EQ(error_after(R"("model_type")", R"("type")"), "c: model_type: is missing");
  EXPECT_EQ(error_with(R"("hidden_act":"gelu",)"), "c: hidden_act: is \"gelu\"; supported is silu");
  EXPECT_EQ(error_with(R"("use_sliding_window":true,)"),
            "c: use_sliding_window: is true; supported is false");
  EXPECT_EQ(error_with(R"("rope_scaling":{"rope_type":"yarn","factor":4},)"),
            "c: rope_scaling.rope_type: is \"yarn\"; supported is default");
  EXPECT_EQ(error_with(R"("rope_parameters":{"partial_rotary_factor":0.5},)"),
            "c: rope_parameters.partial_rotary_factor: is not 1; supported is 1");
  EXPECT_EQ(error_with(R"("quantization_config":{"quant_method":"gptq","bits":4},)"),
            "c: quantization_config.quant_method: is not supported; supported is the quantization "
            "of MLX: group_size, bits and mode");
}

TEST(Config, RefusesWrongTypesAndRanges) {
  EXPECT_EQ(error_after(R"("hidden_size":16)", R"("hidden_size":"16")"),
            "c: hidden_size: is the string \"16\", expected an integer from 1 to 16777216");
  EXPECT_EQ(error_after(R"("hidden_size":16)", R"("hidden_size":16.0)"),
            "c: hidden_size: is 16.0, expected an integer from 1 to 16777216");
  EXPECT_EQ(error_after(R"("hidden_size":16)", R"("hidden_size":18446744073709551615)"),
            "c: hidden_size: is 18446744073709551615, expected an integer from 1 to 16777216");
  EXPECT_EQ(error_after(R"("hidden_size":16)", R"("hidden_size":-16)"),
            "c: hidden_size: is -16, expected an integer from 1 to 16777216");
  EXPECT_EQ(error_after(R"("hidden_size":16)", R"("hidden_size":null)"),
            "c: hidden_size: is missing");
  EXPECT_EQ(error_after(R"("hidden_size":16)", R"("hidden_size":17)"),
            "c: head_dim: is missing, and hidden_size 17 is no multiple of num_attention_heads, 2");
  EXPECT_EQ(error_after(R"("hidden_size":16)", R"("hidden_size":6)"),
            "c: head_dim: is 3, expected an even number");
  EXPECT_EQ(error_after(R"("num_key_value_heads":1)", R"("num_key_value_heads":3)"),
            "c: num_attention_heads: is 2, no multiple of num_key_value_heads, 3");
  EXPECT_EQ(error_after(R"("num_experts_per_tok":1)", R"("num_experts_per_tok":3)"),
            "c: num_experts_per_tok: is 3, expected an integer from 1 to 2");
  EXPECT_EQ(error_after(R"("rms_norm_eps":1e-05)", R"("rms_norm_eps":-1)"),
            "c: rms_norm_eps: is negative");
  EXPECT_EQ(error_after("10000.0", "0"), "c: rope_theta: is 0.0, expected more than 0");
  EXPECT_EQ(error_after("10000.0", "true"), "c: rope_theta: is true, expected a number");
  EXPECT_EQ(error_with(R"("rope_parameters":{"rope_theta":5},)"),
            "c: rope_theta: is 10000.0, but rope_parameters says 5.0");
  EXPECT_EQ(error_with(R"("norm_topk_prob":1,)"),
            "c: norm_topk_prob: is 1, expected true or false");
  EXPECT_EQ(error_with(R"("eos_token_id":[3],)"),
            "c: eos_token_id: is 3, expected an integer from 0 to 2");
  EXPECT_EQ(error_with(R"("quantization":[],)"),
            "c: quantization: is an array, expected an object");
  EXPECT_EQ(error_with(R"("quantization":{"bits":4},)"), "c: quantization.group_size: is missing");
  EXPECT_EQ(error_with(R"("quantization":{"bits":4,"group_size":64,"mode":"q4"},)"),
            "c: quantization.mode: is \"q4\", expected affine, mxfp4, mxfp8 or nvfp4");
  EXPECT_EQ(
      error_with(R"("quantization":{"bits":4,"group_size":64,"a":{"bits":7}},)"),
      "c: quantization.a: [quantize] bits is 7 with group_size 64, expected bits 2, 3, 4, 5, 6 "
      "or 8 with group_size 16, 32, 64 or 128");
  EXPECT_EQ(error_with(R"("quantization":{"bits":4,"group_size":64,"a":1},)"),
            "c: quantization.a: is neither a module's settings nor true or false");
}

TEST(Config, DemoModels) {
  const std::filesystem::path models = MOEBLAS_MODELS_DIR;
  const Config bf16 = Config::read(models / "kjv-olmoe-8m" / "config.json");
  EXPECT_EQ(bf16.num_experts, 12);
  EXPECT_TRUE(bf16.norm_topk_prob);
  EXPECT_TRUE(is_byte_model(bf16, models / "kjv-olmoe-8m"));
  EXPECT_EQ(Config::read(models / "kjv-olmoe-8m-4bit" / "config.json").quantization->spec,
            (QuantSpec{Mode::affine, 4, 64}));
}

}  // namespace
}  // namespace moeblas::test
