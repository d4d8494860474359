// How config.json is read, and what is refused.
#include "harness/models/model_spec.h"

#include <gtest/gtest.h>

#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using nlohmann::json;
using testing::Refuses;
using testing::SmallConfig;
using testing::SmallGpt2Config;
using testing::TempFolder;
using testing::WriteFile;

ModelSpec Load(const json& config) {
  TempFolder dir;
  WriteFile(dir / "config.json", config.dump());
  return LoadModelSpec(dir.Path());
}

json With(const std::string& key, json value) {
  json config = SmallConfig();
  config[key] = std::move(value);
  return config;
}

json Without(const std::string& key) {
  json config = SmallConfig();
  config.erase(key);
  return config;
}

TEST(ModelSpecTest, ReadsEveryFieldAsTransformers4WritesIt) {
  const ModelSpec spec = Load(SmallConfig());
  EXPECT_EQ(spec.family, "qwen3");
  EXPECT_EQ(spec.hidden_size, 8);
  EXPECT_EQ(spec.intermediate_size, 12);
  EXPECT_EQ(spec.num_layers, 2);
  EXPECT_EQ(spec.vocab_size, 10);
  EXPECT_EQ(spec.max_positions, 32);
  EXPECT_EQ(spec.num_q_heads, 2);
  EXPECT_EQ(spec.num_kv_heads, 1);
  EXPECT_EQ(spec.head_dim, 64);
  EXPECT_EQ(spec.norm_eps, 1e-6f);
  EXPECT_EQ(spec.norm, NormKind::kRms);
  EXPECT_EQ(spec.position, PositionKind::kRope);
  EXPECT_EQ(spec.rope_pairing, RopePairing::kHalf);
  EXPECT_EQ(spec.rope_theta, 1e6);
  EXPECT_FALSE(spec.rope_scaling.has_value());
  EXPECT_EQ(spec.mlp, ActivationKind::kGatedSilu);
  EXPECT_FALSE(spec.mlp_bias);
  EXPECT_TRUE(spec.qk_norm);
  EXPECT_FALSE(spec.qkv_bias);
  EXPECT_FALSE(spec.output_bias);
  EXPECT_FALSE(spec.tied_embeddings);
  EXPECT_EQ(spec.dtype, DType::kBf16);
  EXPECT_EQ(spec.eos_token_ids, std::vector<int32_t>{9});
  EXPECT_EQ(spec.QSize(), 128);
  EXPECT_EQ(spec.KvSize(), 64);
  EXPECT_EQ(spec.KvBytesPerToken(DType::kBf16), 2 * 2 * 64 * 2);
}

TEST(ModelSpecTest, ReadsTheKeysOfTransformers5) {
  json config = SmallConfig();
  config.erase("torch_dtype");
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config["dtype"] = "float16";
  config["rope_parameters"] = {{"rope_theta", 12345.5}, {"rope_type", "default"}};
  config["layer_types"] = {"full_attention", "full_attention"};
  const ModelSpec spec = Load(config);
  EXPECT_EQ(spec.dtype, DType::kF16);
  EXPECT_EQ(spec.rope_theta, 12345.5);
}

json OfFamily(const char* architecture) { return With("architectures", {architecture}); }

TEST(ModelSpecTest, LlamaHasNoQkNormAndTwoFlagsOfBiases) {
  json config = OfFamily("LlamaForCausalLM");
  ModelSpec spec = Load(config);
  EXPECT_EQ(spec.family, "llama");
  EXPECT_FALSE(spec.qk_norm || spec.qkv_bias || spec.output_bias || spec.mlp_bias);
  EXPECT_FALSE(spec.tied_embeddings);
  config["attention_bias"] = true;
  spec = Load(config);
  EXPECT_TRUE(spec.qkv_bias && spec.output_bias);
  EXPECT_FALSE(spec.mlp_bias);
  config["attention_bias"] = false;
  config["mlp_bias"] = true;
  spec = Load(config);
  EXPECT_FALSE(spec.qkv_bias || spec.output_bias);
  EXPECT_TRUE(spec.mlp_bias);
}

// Configs of Llama 1 and 2 omit values for which transformers has defaults.
TEST(ModelSpecTest, LlamaDefaultsAreThoseOfTransformers) {
  json config = OfFamily("LlamaForCausalLM");
  config.erase("rope_theta");
  config.erase("num_key_value_heads");
  const ModelSpec spec = Load(config);
  EXPECT_EQ(spec.rope_theta, 10000);
  EXPECT_EQ(spec.num_kv_heads, 2);
}

json Llama3Rope() {
  return {{"rope_type", "llama3"},
          {"factor", 32.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

TEST(ModelSpecTest, Llama3ScalingIsReadFromEitherKey) {
  const Llama3Scaling expected{
      .factor = 32, .low_freq_factor = 1, .high_freq_factor = 4, .original_positions = 8192};
  json config = OfFamily("LlamaForCausalLM");
  config["rope_scaling"] = Llama3Rope();
  EXPECT_EQ(Load(config).rope_scaling, expected);
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = Llama3Rope();
  config["rope_parameters"]["rope_theta"] = 5e5;
  EXPECT_EQ(Load(config).rope_scaling, expected);
  EXPECT_EQ(Load(config).rope_theta, 5e5);
}

TEST(ModelSpecTest, Qwen2HasBiasesOfQkvAloneAndNoHeadDim) {
  json config = OfFamily("Qwen2ForCausalLM");
  config.erase("head_dim");
  config.erase("attention_bias");
  config["hidden_size"] = 128;
  config["sliding_window"] = 32768;  // not used, because use_sliding_window is false
  const ModelSpec spec = Load(config);
  EXPECT_EQ(spec.family, "qwen2");
  EXPECT_EQ(spec.head_dim, 64);
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_FALSE(spec.output_bias || spec.mlp_bias || spec.qk_norm);
}

TEST(ModelSpecTest, ErnieRotatesNeighboursAndIsTiedByDefault) {
  json config = OfFamily("Ernie4_5ForCausalLM");
  config.erase("tie_word_embeddings");
  config.erase("attention_bias");
  config.erase("rope_theta");
  ModelSpec spec = Load(config);
  EXPECT_EQ(spec.family, "ernie4_5");
  EXPECT_EQ(spec.rope_pairing, RopePairing::kInterleaved);
  EXPECT_EQ(spec.rope_theta, 500000);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_FALSE(spec.qkv_bias || spec.output_bias || spec.mlp_bias || spec.qk_norm);
  config["use_bias"] = true;
  spec = Load(config);
  EXPECT_TRUE(spec.qkv_bias && spec.output_bias && spec.mlp_bias);
}

TEST(ModelSpecTest, Gpt2ReadsItsOwnKeys) {
  json config = SmallGpt2Config();
  ModelSpec spec = Load(config);
  EXPECT_EQ(spec.family, "gpt2");
  EXPECT_EQ(spec.hidden_size, 64);
  EXPECT_EQ(spec.intermediate_size, 256);  // 4 x hidden size if n_inner is missing
  EXPECT_EQ(spec.num_layers, 2);
  EXPECT_EQ(spec.max_positions, 16);
  EXPECT_EQ(spec.num_q_heads, 1);
  EXPECT_EQ(spec.num_kv_heads, 1);
  EXPECT_EQ(spec.head_dim, 64);
  EXPECT_EQ(spec.norm, NormKind::kLayer);
  EXPECT_EQ(spec.norm_eps, 1e-5f);
  EXPECT_EQ(spec.position, PositionKind::kLearned);
  EXPECT_EQ(spec.rope_theta, 0);
  EXPECT_EQ(spec.mlp, ActivationKind::kGeluTanh);
  EXPECT_TRUE(spec.qkv_bias && spec.output_bias && spec.mlp_bias && spec.tied_embeddings);
  EXPECT_EQ(spec.dtype, DType::kF32);  // the published config names no dtype
  EXPECT_EQ(spec.UpRows(), 256);
  config["n_inner"] = 40;
  config["tie_word_embeddings"] = false;
  config["torch_dtype"] = "bfloat16";
  spec = Load(config);
  EXPECT_EQ(spec.intermediate_size, 40);
  EXPECT_FALSE(spec.tied_embeddings);
  EXPECT_EQ(spec.dtype, DType::kBf16);
}

TEST(ModelSpecTest, HeadDimIsDerivedWhereTheConfigHasNone) {
  json config = Without("head_dim");
  config["hidden_size"] = 256;
  EXPECT_EQ(Load(config).head_dim, 128);
  config["head_dim"] = nullptr;
  config["num_attention_heads"] = 4;
  EXPECT_EQ(Load(config).head_dim, 64);
  config["head_dim"] = 128;  // the config takes precedence
  EXPECT_EQ(Load(config).head_dim, 128);
}

TEST(ModelSpecTest, BiasAndTyingFollowTheConfig) {
  EXPECT_TRUE(Load(With("attention_bias", true)).qkv_bias);
  EXPECT_TRUE(Load(With("attention_bias", true)).output_bias);
  EXPECT_TRUE(Load(With("tie_word_embeddings", true)).tied_embeddings);
}

TEST(ModelSpecTest, EveryWholeGroupUpTo16IsTaken) {
  for (int group = 1; group <= 16; ++group) {
    json config = With("num_attention_heads", 3 * group);
    config["num_key_value_heads"] = 3;
    EXPECT_EQ(Load(config).num_q_heads, 3 * group);
  }
}

TEST(ModelSpecTest, EosMayBeOneSeveralOrNone) {
  EXPECT_EQ(Load(With("eos_token_id", {7, 3, 7})).eos_token_ids, (std::vector<int32_t>{3, 7}));
  EXPECT_TRUE(Load(With("eos_token_id", nullptr)).eos_token_ids.empty());
  EXPECT_TRUE(Load(Without("eos_token_id")).eos_token_ids.empty());
  EXPECT_TRUE(Load(With("eos_token_id", nullptr)).eos_token_ids.empty());
}

TEST(ModelSpecTest, GenerationConfigSaysWhichTokensEnd) {
  TempFolder dir;
  WriteFile(dir / "config.json", SmallConfig().dump());
  WriteFile(dir / "generation_config.json", R"({"eos_token_id": [5, 6]})");
  EXPECT_EQ(LoadModelSpec(dir.Path()).eos_token_ids, (std::vector<int32_t>{5, 6}));
  WriteFile(dir / "generation_config.json", R"({"temperature": 0.6})");
  EXPECT_EQ(LoadModelSpec(dir.Path()).eos_token_ids, std::vector<int32_t>{9});
  WriteFile(dir / "generation_config.json", R"({"eos_token_id": 10})");
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { LoadModelSpec(dir.Path()); },
                                      {"generation_config.json: eos_token_id is 10", "0 to 9"}));
}

struct BadConfig {
  std::string name;
  json config;
  std::vector<std::string> says;
};

void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.name; }

json Gpt2With(const char* key, json value) {
  json config = SmallGpt2Config();
  config[key] = std::move(value);
  return config;
}

json RopeWith(const char* key, json value) {
  json config = With("rope_scaling", Llama3Rope());
  config["rope_scaling"][key] = std::move(value);
  return config;
}

std::vector<BadConfig> BadConfigs() {
  json both_dtypes = With("dtype", "float16");
  json both_thetas = With("rope_parameters", {{"rope_theta", 5}, {"rope_type", "default"}});
  json inner_theta = With("rope_parameters", {{"rope_theta", 0.25}, {"rope_type", "default"}});
  inner_theta.erase("rope_theta");
  json odd_heads = Without("head_dim");
  odd_heads["hidden_size"] = 129;
  json derived = Without("head_dim");
  derived["hidden_size"] = 64;
  json two_scalings = With("rope_scaling", Llama3Rope());
  two_scalings["rope_parameters"] = Llama3Rope();
  two_scalings["rope_parameters"]["factor"] = 8.0;
  json window = With("sliding_window", 4096);
  window.erase("use_sliding_window");
  return {
      {"Architecture",
       With("architectures", {"MixtralForCausalLM"}),
       {"MixtralForCausalLM", "supported: Qwen3ForCausalLM"}},
      {"ArchitectureText", With("architectures", "Qwen3ForCausalLM"), {"supported: Qwen3"}},
      {"ArchitectureMissing", Without("architectures"), {"architectures is missing", "Qwen3"}},
      {"DType",
       With("torch_dtype", "float8_e4m3fn"),
       {"torch_dtype is \"float8_e4m3fn\"", "supported: float32, bfloat16, float16"}},
      {"DTypeNumber", With("torch_dtype", 16), {"torch_dtype is 16", "supported"}},
      {"DTypeMissing", Without("torch_dtype"), {"dtype (or torch_dtype) is missing"}},
      {"DTypesDiffer", both_dtypes, {"dtype is \"float16\"", "\"bfloat16\"", "must agree"}},
      {"Quantized",
       With("quantization_config", {{"quant_method", "gptq"}}),
       {"quantization_config", "gptq", "not supported"}},
      {"RopeScaling",
       With("rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}),
       {"rope_scaling.type is \"yarn\"", "supported: \"default\", \"llama3\""}},
      {"RopeDynamic",
       With("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}),
       {"rope_scaling.rope_type is \"dynamic\""}},
      {"RopeLongrope", RopeWith("rope_type", "longrope"), {"rope_type is \"longrope\""}},
      {"RopeFactorMissing", RopeWith("factor", nullptr), {"rope_scaling: factor is missing"}},
      {"RopeFactorBelowOne", RopeWith("factor", 0.5), {"factor is 0.5", "at least 1"}},
      {"RopeBandEmpty", RopeWith("low_freq_factor", 4), {"low_freq_factor is 4", "below"}},
      {"RopeOriginalMissing",
       RopeWith("original_max_position_embeddings", nullptr),
       {"original_max_position_embeddings is missing"}},
      {"RopeScalingsDiffer", two_scalings, {"rope_parameters is", "differently"}},
      {"RopeType",
       With("rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "linear"}}),
       {"rope_parameters.rope_type is \"linear\""}},
      {"RopePart", With("partial_rotary_factor", 0.5), {"partial_rotary_factor is 0.5"}},
      {"RopeThetasDiffer", both_thetas, {"rope_theta is 5", "1e+06", "must agree"}},
      {"RopeThetaMissing", Without("rope_theta"), {"rope_theta is missing"}},
      {"RopeThetaZero", With("rope_theta", 0), {"rope_theta is 0", "above 0"}},
      {"RopeThetaBelowOne", With("rope_theta", 0.5), {"rope_theta is 0.5", "at least 1"}},
      {"RopeThetaDenormal", With("rope_theta", 1e-310), {"rope_theta is 1e-310", "at least 1"}},
      {"RopeThetaInside",
       inner_theta,
       {"rope_parameters.rope_theta is 0.25", "it must be at least 1"}},
      {"RopeThetaText", With("rope_theta", "1e6"), {"rope_theta is \"1e6\""}},
      {"RopeScalingText", With("rope_scaling", "yarn"), {"rope_scaling is \"yarn\""}},
      {"SlidingWindow",
       With("use_sliding_window", true),
       {"use_sliding_window is true", "supported: false"}},
      {"SlidingWindowAlone", window, {"sliding_window is 4096", "not supported"}},
      {"Experts", With("num_experts", 64), {"num_experts is 64", "mixtures of experts"}},
      {"ErnieExperts", With("moe_num_experts", {64, 64}), {"moe_num_experts is [64,64]"}},
      {"ErnieMoe",
       With("architectures", {"Ernie4_5_MoeForCausalLM"}),
       {"Ernie4_5_MoeForCausalLM", "Ernie4_5ForCausalLM"}},
      {"Gpt2Activation",
       Gpt2With("activation_function", "gelu"),
       {"activation_function is \"gelu\"", "\"gelu_new\", \"gelu_pytorch_tanh\""}},
      {"Gpt2Unscaled",
       Gpt2With("scale_attn_weights", false),
       {"scale_attn_weights is false", "supported: true"}},
      {"Gpt2LayerScale",
       Gpt2With("scale_attn_by_inverse_layer_idx", true),
       {"scale_attn_by_inverse_layer_idx is true", "supported: false"}},
      {"Gpt2CrossAttention",
       Gpt2With("add_cross_attention", true),
       {"add_cross_attention is true"}},
      {"Gpt2HeadDim",
       Gpt2With("n_head", 2),
       {"head_dim is 32", "n_embd / n_head", "supported: 64, 128"}},
      {"Gpt2Eps", Gpt2With("layer_norm_epsilon", nullptr), {"layer_norm_epsilon is missing"}},
      {"LayerTypes",
       With("layer_types", {"full_attention", "sliding_attention"}),
       {"layer_types", "sliding_attention"}},
      {"Activation", With("hidden_act", "gelu"), {"hidden_act is \"gelu\"", "\"silu\""}},
      {"HeadDim", With("head_dim", 96), {"head_dim is 96", "supported: 64, 128"}},
      {"HeadDimDerived", derived, {"head_dim is 32", "hidden_size / num_attention_heads"}},
      {"HeadDimUndefined", odd_heads, {"129", "not a multiple of num_attention_heads, 2"}},
      {"GroupNotWhole",
       With("num_key_value_heads", 3),
       {"num_key_value_heads is 3", "num_attention_heads, 2", "multiple"}},
      {"GroupTooLarge", With("num_attention_heads", 17), {"num_attention_heads, 17", "at most 16"}},
      {"HiddenSizeMissing", Without("hidden_size"), {"hidden_size is missing"}},
      {"HiddenSizeZero", With("hidden_size", 0), {"hidden_size is 0", "1 to 16777216"}},
      {"HiddenSizeNegative", With("hidden_size", -8), {"hidden_size is -8"}},
      {"HiddenSizeFraction", With("hidden_size", 8.5), {"hidden_size is 8.5"}},
      {"HiddenSizeHuge",
       With("hidden_size", 18446744073709551615u),
       {"hidden_size is 18446744073709551615"}},
      {"LayersNull", With("num_hidden_layers", nullptr), {"num_hidden_layers is missing"}},
      {"LayersTooMany", With("num_hidden_layers", 100000), {"1 to 1024"}},
      {"VocabText", With("vocab_size", "10"), {"vocab_size is \"10\""}},
      {"PositionsMissing", Without("max_position_embeddings"), {"max_position_embeddings"}},
      {"KvHeadsMissing", Without("num_key_value_heads"), {"num_key_value_heads is missing"}},
      {"NormEpsMissing", Without("rms_norm_eps"), {"rms_norm_eps is missing"}},
      {"NormEpsZero", With("rms_norm_eps", 0), {"rms_norm_eps is 0"}},
      {"NormEpsLarge", With("rms_norm_eps", 2), {"rms_norm_eps is 2", "at most 1"}},
      {"BiasText", With("attention_bias", "no"), {"attention_bias is \"no\"", "true or false"}},
      {"EosOutside", With("eos_token_id", {3, 10}), {"eos_token_id is [3,10]", "0 to 9"}},
      {"EosNegative", With("eos_token_id", -1), {"eos_token_id is -1"}},
      {"EosHuge", With("eos_token_id", 9223372036854775809u), {"eos_token_id"}},
      {"ControlCharacters", With("hidden_act", "ge\nlu"), {"ge\\x0alu"}},
      {"NotAnObject", json::array({1}), {"must be an object"}},
  };
}

class BadConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedByName) {
  std::vector<std::string> says = GetParam().says;
  says.push_back("config.json: ");
  EXPECT_TRUE(Refuses<RuntimeFailure>([&] { Load(GetParam().config); }, says));
}

INSTANTIATE_TEST_SUITE_P(Configs, BadConfigTest, ::testing::ValuesIn(BadConfigs()),
                         [](const auto& info) { return info.param.name; });

TEST(ModelSpecTest, UnreadableConfigIsRefused) {
  TempFolder dir;
  const auto load = [&] { LoadModelSpec(dir.Path()); };
  EXPECT_TRUE(Refuses<RuntimeFailure>(load, {"config.json", "No such file"}));
  WriteFile(dir / "config.json", "{\"hidden_size\": 8");
  EXPECT_TRUE(Refuses<RuntimeFailure>(load, {"config.json", "not valid JSON"}));
  WriteFile(dir / "config.json", R"({"hidden_size": 8, "hidden_size": 16})");
  EXPECT_TRUE(Refuses<RuntimeFailure>(load, {"\"hidden_size\" occurs twice"}));
  WriteFile(dir / "config.json", std::string(1000, '['));
  EXPECT_TRUE(Refuses<RuntimeFailure>(load, {"nests deeper than 32"}));
  WriteFile(dir / "config.json", "{}");
  std::filesystem::resize_file(dir / "config.json", (32 << 20) + 1);
  EXPECT_TRUE(Refuses<RuntimeFailure>(load, {"33554433 bytes", "at most 33554432"}));
  EXPECT_TRUE(
      Refuses<RuntimeFailure>([&] { LoadModelSpec(dir / "gone"); }, {"gone: not a folder"}));
}

}  // namespace
}  // namespace tokline
