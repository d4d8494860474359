// Tensors are bound to their roles, and nothing is bound that the config does not mention.
#include "harness/models/model_weights.h"

#include <gtest/gtest.h>

#include "harness/models/family.h"
#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline {
namespace {

using testing::Refuses;
using testing::SmallConfig;
using testing::SmallGpt2Config;
using testing::SmallGpt2Tensors;
using testing::SmallTensors;
using testing::TempFolder;
using testing::TestTensor;
using testing::WriteModel;

using Tensors = std::vector<TestTensor>;

Tensors BiasTensors() {
  Tensors biases;
  for (const char* layer : {"model.layers.0.self_attn.", "model.layers.1.self_attn."}) {
    const std::string prefix = layer;
    biases.push_back({prefix + "q_proj.bias", {128}});
    biases.push_back({prefix + "k_proj.bias", {64}});
    biases.push_back({prefix + "v_proj.bias", {64}});
    biases.push_back({prefix + "o_proj.bias", {8}});
  }
  return biases;
}

Tensors Joined(Tensors tensors, const Tensors& more) {
  tensors.insert(tensors.end(), more.begin(), more.end());
  return tensors;
}

Tensors Without(Tensors tensors, const std::string& name) {
  std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
  return tensors;
}

Tensors Replaced(Tensors tensors, const TestTensor& by) {
  return Joined(Without(std::move(tensors), by.name), {by});
}

// A model folder with its spec and checkpoint. The tests exercise Bind().
struct Model {
  Model(const nlohmann::json& config, const Tensors& tensors) {
    WriteModel(dir.Path(), config, tensors);
  }
  ModelWeights Bind() {
    spec = LoadModelSpec(dir.Path());
    checkpoint.emplace(dir.Path());
    return BindWeights(*checkpoint, spec);
  }
  ::testing::AssertionResult IsRefused(const std::vector<std::string>& says) {
    return Refuses<RuntimeFailure>([&] { Bind(); }, says);
  }

  TempFolder dir;
  ModelSpec spec;
  std::optional<Checkpoint> checkpoint;
};

nlohmann::json With(const std::string& key, nlohmann::json value) {
  nlohmann::json config = SmallConfig();
  config[key] = std::move(value);
  return config;
}

TEST(ModelWeightsTest, EveryRoleGetsItsOwnTensorWithoutACopy) {
  Model model(SmallConfig(), SmallTensors());
  const ModelWeights weights = model.Bind();
  const auto expect = [&](const TensorView& view, const std::string& name) {
    const CheckpointTensor* tensor = model.checkpoint->Find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(view.data, tensor->data) << name;
    EXPECT_EQ(view.bytes, tensor->bytes) << name;
    EXPECT_EQ(view.shape, tensor->shape) << name;
    EXPECT_EQ(view.dtype, DType::kBf16) << name;
  };
  expect(weights.embedding, "model.embed_tokens.weight");
  expect(weights.final_norm, "model.norm.weight");
  expect(weights.lm_head, "lm_head.weight");
  ASSERT_EQ(weights.layers.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const LayerWeights& layer = weights.layers[i];
    const std::string prefix = StrCat("model.layers.", i, ".");
    expect(layer.input_norm, prefix + "input_layernorm.weight");
    expect(layer.q, prefix + "self_attn.q_proj.weight");
    expect(layer.k, prefix + "self_attn.k_proj.weight");
    expect(layer.v, prefix + "self_attn.v_proj.weight");
    expect(layer.o, prefix + "self_attn.o_proj.weight");
    expect(layer.q_norm, prefix + "self_attn.q_norm.weight");
    expect(layer.k_norm, prefix + "self_attn.k_norm.weight");
    expect(layer.post_norm, prefix + "post_attention_layernorm.weight");
    expect(layer.gate, prefix + "mlp.gate_proj.weight");
    expect(layer.up, prefix + "mlp.up_proj.weight");
    expect(layer.down, prefix + "mlp.down_proj.weight");
    for (const TensorView* bias : {&layer.q_bias, &layer.k_bias, &layer.v_bias, &layer.o_bias}) {
      EXPECT_EQ(bias->data, nullptr);
    }
  }
  EXPECT_TRUE(weights.extra_tensors.empty());
}

TEST(ModelWeightsTest, CountsEachParameterOnce) {
  int64_t bytes = 0;
  for (const TestTensor& tensor : SmallTensors()) bytes += tensor.Bytes();
  const ModelWeights untied = Model(SmallConfig(), SmallTensors()).Bind();
  EXPECT_EQ(untied.bytes, bytes);
  EXPECT_EQ(untied.parameters, bytes / 2);
  const ModelWeights tied =
      Model(With("tie_word_embeddings", true), Without(SmallTensors(), "lm_head.weight")).Bind();
  EXPECT_EQ(tied.bytes, bytes - 160);
  EXPECT_EQ(tied.lm_head.data, tied.embedding.data);
}

TEST(ModelWeightsTest, TiedModelIgnoresAStoredLmHeadAndSaysSo) {
  Model model(With("tie_word_embeddings", true), SmallTensors());
  const ModelWeights weights = model.Bind();
  EXPECT_EQ(weights.lm_head.data, model.checkpoint->Find("model.embed_tokens.weight")->data);
  EXPECT_EQ(weights.extra_tensors, std::vector<std::string>{"lm_head.weight"});
}

// Makes the LM head equal to the embedding but for the byte at `changed`, if that is not negative.
// The two are the first of these tensors.
void CopyEmbedding(const std::filesystem::path& path, const Tensors& tensors, int64_t changed) {
  std::string file = testing::ReadFile(path);
  size_t begin = file.size();
  for (const TestTensor& tensor : tensors) begin -= static_cast<size_t>(tensor.Bytes());
  const auto table = static_cast<size_t>(tensors[0].Bytes());
  file.replace(begin + table, table, std::string(file, begin, table));
  if (changed >= 0) file[begin + table + static_cast<size_t>(changed)] ^= 1;
  testing::WriteFile(path, file);
}

// Versions of transformers disagree about which of the two to use.
TEST(ModelWeightsTest, StoredLmHeadMustEqualTheEmbeddingToWhichItIsTied) {
  const int64_t vocab_size = 600'000;  // more than one piece of what a thread reads
  nlohmann::json config = With("tie_word_embeddings", true);
  config["vocab_size"] = vocab_size;
  const Tensors tensors =
      Joined({{"model.embed_tokens.weight", {vocab_size, 8}}, {"lm_head.weight", {vocab_size, 8}}},
             Without(Without(SmallTensors(), "model.embed_tokens.weight"), "lm_head.weight"));
  for (const int64_t changed : {int64_t{-1}, int64_t{0}, vocab_size * 16 - 1}) {
    Model model(config, tensors);
    CopyEmbedding(model.dir / "model.safetensors", tensors, changed);
    const ModelWeights weights = model.Bind();
    EXPECT_EQ(weights.extra_tensors, std::vector<std::string>{"lm_head.weight"});
    const auto check = [&] { CheckElements(*model.checkpoint, weights); };
    if (changed < 0) {
      EXPECT_NO_THROW(check());
    } else {
      EXPECT_TRUE(Refuses<RuntimeFailure>(
          check, {"tensor \"lm_head.weight\" differs from \"model.embed_tokens.weight\"",
                  "config.json ties it", "none, or tie_word_embeddings false"}))
          << changed;
    }
  }
}

TEST(ModelWeightsTest, StoredLmHeadOfAnotherKindIsRefused) {
  const nlohmann::json tied = With("tie_word_embeddings", true);
  EXPECT_TRUE(Model(tied, Replaced(SmallTensors(), {"lm_head.weight", {12, 8}}))
                  .IsRefused({"\"lm_head.weight\" has the dtype BF16 and the shape [12, 8]",
                              "\"model.embed_tokens.weight\"", "has BF16 and [10, 8]"}));
  EXPECT_TRUE(Model(tied, Replaced(SmallTensors(), {"lm_head.weight", {10, 8}, "F32"}))
                  .IsRefused({"\"lm_head.weight\" has the dtype F32", "has BF16 and"}));
}

TEST(ModelWeightsTest, UntiedModelNeedsItsLmHead) {
  EXPECT_TRUE(Model(SmallConfig(), Without(SmallTensors(), "lm_head.weight"))
                  .IsRefused({"\"lm_head.weight\" is missing", "[10, 8]"}));
}

TEST(ModelWeightsTest, BiasesAreBoundWhereTheConfigSaysSo) {
  const nlohmann::json biased = With("attention_bias", true);
  Model model(biased, Joined(SmallTensors(), BiasTensors()));
  const ModelWeights weights = model.Bind();
  EXPECT_EQ(weights.layers[1].q_bias.data,
            model.checkpoint->Find("model.layers.1.self_attn.q_proj.bias")->data);
  EXPECT_EQ(weights.layers[1].o_bias.shape, std::vector<int64_t>{8});
  EXPECT_TRUE(Model(biased, SmallTensors())
                  .IsRefused({"8 of the tensors", "layers.0.self_attn.q_proj.bias\" [128]"}));
  EXPECT_TRUE(Model(biased, Joined(SmallTensors(),
                                   Without(BiasTensors(), "model.layers.1.self_attn.o_proj.bias")))
                  .IsRefused({"layers.1.self_attn.o_proj.bias\" is missing", "[8]"}));
}

TEST(ModelWeightsTest, BiasThatTheConfigDeniesIsRefused) {
  EXPECT_TRUE(Model(SmallConfig(), Joined(SmallTensors(), BiasTensors()))
                  .IsRefused({"self_attn.q_proj.bias", "attention_bias is false"}));
  EXPECT_TRUE(
      Model(SmallConfig(), Joined(SmallTensors(), {{"model.layers.1.self_attn.v_proj.bias", {64}}}))
          .IsRefused({"layers.1.self_attn.v_proj.bias", "attention_bias is false"}));
  EXPECT_TRUE(
      Model(SmallConfig(), Joined(SmallTensors(), {{"model.layers.0.mlp.up_proj.bias", {12}}}))
          .IsRefused({"mlp.up_proj.bias", "a bias that the qwen3 family does not have"}));
}

TEST(ModelWeightsTest, MlpBiasesAreBoundWhereTheConfigSaysSo) {
  nlohmann::json config = With("architectures", {"LlamaForCausalLM"});
  Tensors tensors = SmallTensors();
  std::erase_if(tensors, [](const TestTensor& t) { return t.name.find("_norm.") != t.name.npos; });
  Tensors biased = tensors;
  for (const char* layer : {"model.layers.0.mlp.", "model.layers.1.mlp."}) {
    const std::string prefix = layer;
    biased.push_back({prefix + "gate_proj.bias", {12}});
    biased.push_back({prefix + "up_proj.bias", {12}});
    biased.push_back({prefix + "down_proj.bias", {8}});
  }
  EXPECT_EQ(Model(config, tensors).Bind().layers[0].up_bias.data, nullptr);
  EXPECT_TRUE(Model(config, biased).IsRefused({"mlp.gate_proj.bias", "mlp_bias is false"}));
  config["mlp_bias"] = true;
  Model model(config, biased);
  const LayerWeights layer = model.Bind().layers[1];
  EXPECT_EQ(layer.gate_bias.data,
            model.checkpoint->Find("model.layers.1.mlp.gate_proj.bias")->data);
  EXPECT_EQ(layer.up_bias.data, model.checkpoint->Find("model.layers.1.mlp.up_proj.bias")->data);
  EXPECT_EQ(layer.down_bias.data,
            model.checkpoint->Find("model.layers.1.mlp.down_proj.bias")->data);
  EXPECT_TRUE(Model(config, tensors).IsRefused({"6 of the tensors", "mlp.gate_proj.bias"}));
}

TEST(ModelWeightsTest, HeadNormsOfAnotherFamilyAreRefused) {
  EXPECT_TRUE(Model(With("architectures", {"LlamaForCausalLM"}), SmallTensors())
                  .IsRefused({"model.layers.0.self_attn.q_norm.weight",
                              "a norm that the llama family does not have"}));
}

TEST(ModelWeightsTest, BiasThatQwen2NeverHasIsRefused) {
  const nlohmann::json config = With("architectures", {"Qwen2ForCausalLM"});
  Tensors tensors = Joined(SmallTensors(), BiasTensors());
  std::erase_if(tensors, [](const TestTensor& t) { return t.name.find("_norm.") != t.name.npos; });
  EXPECT_TRUE(Model(config, tensors)
                  .IsRefused({"self_attn.o_proj.bias", "a bias that the qwen2 family does not"}));
  std::erase_if(tensors, [](const TestTensor& t) { return t.name.ends_with("o_proj.bias"); });
  EXPECT_NE(Model(config, tensors).Bind().layers[0].q_bias.data, nullptr);
}

// GPT-2's Conv1D stores [inputs, outputs]; Q, K and V are columns of one matrix.
TEST(ModelWeightsTest, Gpt2MatricesAreSeenAsOutputsByInputs) {
  for (const char* prefix : {"", "transformer."}) {
    Model model(SmallGpt2Config(), SmallGpt2Tensors(prefix));
    const ModelWeights weights = model.Bind();
    EXPECT_EQ(weights.lm_head.data, weights.embedding.data);
    EXPECT_EQ(weights.positions.shape, (std::vector<int64_t>{16, 64}));
    EXPECT_TRUE(weights.extra_tensors.empty());
    const LayerWeights& layer = weights.layers[1];
    const auto data = [&](const std::string& name) {
      return static_cast<const std::byte*>(
          static_cast<const void*>(model.checkpoint->Find(StrCat(prefix, "h.1.", name))->data));
    };
    const auto expect = [](const TensorView& view, const std::byte* at, std::vector<int64_t> shape,
                           int64_t row_stride, int64_t column_stride) {
      EXPECT_EQ(view.data, at);
      EXPECT_EQ(view.shape, shape);
      EXPECT_EQ(view.row_stride, row_stride);
      EXPECT_EQ(view.column_stride, column_stride);
      EXPECT_EQ(view.bytes, view.Rows() * view.Columns() * 4);
    };
    const std::byte* qkv = data("attn.c_attn.weight");
    expect(layer.q, qkv, {64, 64}, 1, 192);
    expect(layer.k, qkv + 64 * 4, {64, 64}, 1, 192);
    expect(layer.v, qkv + 128 * 4, {64, 64}, 1, 192);
    expect(layer.v_bias, data("attn.c_attn.bias") + 128 * 4, {64}, 1, 1);
    expect(layer.o, data("attn.c_proj.weight"), {64, 64}, 1, 64);
    expect(layer.up, data("mlp.c_fc.weight"), {256, 64}, 1, 256);
    expect(layer.down, data("mlp.c_proj.weight"), {64, 256}, 1, 64);
    expect(layer.post_norm_bias, data("ln_2.bias"), {64}, 1, 1);
    EXPECT_EQ(layer.gate.data, nullptr);
  }
}

TEST(ModelWeightsTest, EveryTensorOfGpt2IsNeededInItsStoredShape) {
  for (TestTensor tensor : SmallGpt2Tensors("")) {
    // Without an embedding the checkpoint's prefix is unknown, so the first one is assumed.
    if (tensor.name == "wte.weight") continue;
    EXPECT_TRUE(Model(SmallGpt2Config(), Without(SmallGpt2Tensors(""), tensor.name))
                    .IsRefused({StrCat("\"", tensor.name, "\" is missing")}));
    tensor.shape[0] += 1;
    EXPECT_TRUE(Model(SmallGpt2Config(), Replaced(SmallGpt2Tensors(""), tensor))
                    .IsRefused({tensor.name, StrCat("shape [", tensor.shape[0])}));
  }
  EXPECT_TRUE(Model(SmallGpt2Config(), Without(SmallGpt2Tensors(""), "wte.weight"))
                  .IsRefused({"\"transformer.wte.weight\" [10, 64]"}));
}

TEST(ModelWeightsTest, EveryTensorIsNeeded) {
  for (const TestTensor& tensor : SmallTensors()) {
    EXPECT_TRUE(Model(SmallConfig(), Without(SmallTensors(), tensor.name))
                    .IsRefused({StrCat("\"", tensor.name, "\" is missing")}));
  }
}

TEST(ModelWeightsTest, EveryShapeIsHeldAgainstTheConfig) {
  for (TestTensor tensor : SmallTensors()) {
    const std::string right = StrCat("asks for [", tensor.shape[0]);
    tensor.shape[0] += 1;
    EXPECT_TRUE(Model(SmallConfig(), Replaced(SmallTensors(), tensor))
                    .IsRefused({tensor.name, StrCat("shape [", tensor.shape[0]), right}));
  }
}

TEST(ModelWeightsTest, TransposedMatrixIsRefused) {
  EXPECT_TRUE(Model(SmallConfig(),
                    Replaced(SmallTensors(), {"model.layers.0.mlp.down_proj.weight", {12, 8}}))
                  .IsRefused({"down_proj.weight", "[12, 8]", "[8, 12]"}));
}

TEST(ModelWeightsTest, EmbeddingWithoutRowsForAddedTokensIsRefused) {
  EXPECT_TRUE(Model(With("vocab_size", 12), SmallTensors())
                  .IsRefused({"model.embed_tokens.weight", "[10, 8]", "[12, 8]"}));
}

TEST(ModelWeightsTest, LayersBeyondTheConfigAreRefused) {
  EXPECT_TRUE(Model(With("num_hidden_layers", 1), SmallTensors())
                  .IsRefused({"model.layers.1.", "num_hidden_layers is 1"}));
  EXPECT_TRUE(Model(With("num_hidden_layers", 3), SmallTensors())
                  .IsRefused({"11 of the tensors", "\"model.layers.2.input_layernorm.weight\" [8]",
                              "and 6 more"}));
}

TEST(ModelWeightsTest, AllMissingTensorsAreInOneMessage) {
  const Tensors tensors =
      Without(Without(SmallTensors(), "model.norm.weight"), "model.layers.1.mlp.up_proj.weight");
  EXPECT_TRUE(Model(SmallConfig(), tensors)
                  .IsRefused({"2 of the tensors", "\"model.norm.weight\" [8], ",
                              "\"model.layers.1.mlp.up_proj.weight\" [12, 8]; "}));
}

TEST(ModelWeightsTest, NamesWithAnotherPrefixAreNotTakenForTheModel) {
  Tensors tensors = SmallTensors();
  for (TestTensor& tensor : tensors) tensor.name = "transformer." + tensor.name;
  EXPECT_TRUE(
      Model(SmallConfig(), tensors)
          .IsRefused({"25 of the tensors", "\"model.embed_tokens.weight\" [10, 8]", "and 20 more",
                      "25 tensors, the first is \"transformer.lm_head.weight\""}));
}

TEST(ModelWeightsTest, DtypesMayBeMixedWhateverTheConfigSays) {
  const Tensors tensors = Replaced(Replaced(SmallTensors(), {"model.norm.weight", {8}, "F32"}),
                                   {"model.layers.1.mlp.up_proj.weight", {12, 8}, "F16"});
  const ModelWeights weights = Model(SmallConfig(), tensors).Bind();
  EXPECT_EQ(weights.final_norm.dtype, DType::kF32);
  EXPECT_EQ(weights.layers[1].up.dtype, DType::kF16);
  EXPECT_EQ(weights.layers[0].up.dtype, DType::kBf16);
  const ModelWeights plain = Model(With("torch_dtype", "float32"), SmallTensors()).Bind();
  EXPECT_EQ(plain.final_norm.dtype, DType::kBf16);
  EXPECT_EQ(weights.parameters, plain.parameters);
  EXPECT_EQ(weights.bytes, plain.bytes + 16);
}

TEST(ModelWeightsTest, UnsupportedDtypesAreRefused) {
  EXPECT_TRUE(Model(SmallConfig(), Replaced(SmallTensors(), {"model.norm.weight", {8}, "I64"}))
                  .IsRefused({"model.norm.weight", "dtype I64", "supported: F32, BF16, F16"}));
}

TEST(ModelWeightsTest, OtherTensorsAreReportedAndKnownBuffersApart) {
  Model model(SmallConfig(),
              Joined(SmallTensors(), {{"model.layers.0.self_attn.rotary_emb.inv_freq", {32}, "F32"},
                                      {"model.layers.1.attn.bias", {1, 1, 32, 32}},
                                      {"model.layers.1.attn.masked_bias", {}},
                                      {"counter", {}, "I64"},
                                      {"model.layers.0.xrotary_emb.inv_freq", {32}}}));
  const ModelWeights weights = model.Bind();
  EXPECT_EQ(weights.extra_tensors,
            (std::vector<std::string>{"counter", "model.layers.0.xrotary_emb.inv_freq"}));
  EXPECT_EQ(
      weights.known_buffers,
      (std::vector<std::string>{"model.layers.0.self_attn.rotary_emb.inv_freq",
                                "model.layers.1.attn.bias", "model.layers.1.attn.masked_bias"}));
}

TEST(ModelWeightsTest, BiasIsNoMaskForItsNameAlone) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{8}, {1, 1, 8, 9}, {1, 2, 8, 8}, {1, 8, 8}}) {
    EXPECT_TRUE(
        Model(SmallConfig(), Joined(SmallTensors(), {{"model.layers.1.attn.bias", shape}}))
            .IsRefused({"model.layers.1.attn.bias", "a bias that the qwen3 family does not have"}));
  }
}

TEST(ModelWeightsTest, UnknownFamilyIsRefusedWithTheKnown) {
  EXPECT_TRUE(
      Refuses<InvalidArgument>([] { FamilyNamed("gpt5"); }, {"\"gpt5\"", "supported: qwen3"}));
}

TEST(ModelWeightsTest, CommittedCheckpointsBind) {
  const std::filesystem::path root = TOKLINE_SOURCE_DIR;
  for (const char* folder :
       {"models/qwen3-lookup", "harness/tests/golden/qwen3_tiny",
        "harness/tests/golden/qwen3_untied_group3", "harness/tests/golden/qwen3_sharded",
        "harness/tests/golden/llama3_scaled", "harness/tests/golden/llama_biased",
        "harness/tests/golden/qwen2_group3", "harness/tests/golden/ernie4_5_group7",
        "harness/tests/golden/gpt2_tiny", "harness/tests/golden/gpt2_bare"}) {
    const ModelSpec spec = LoadModelSpec(root / folder);
    const Checkpoint checkpoint(root / folder);
    const ModelWeights weights = BindWeights(checkpoint, spec);
    EXPECT_EQ(static_cast<int64_t>(weights.layers.size()), spec.num_layers) << folder;
    EXPECT_TRUE(weights.extra_tensors.empty()) << folder;
    EXPECT_LE(weights.bytes, checkpoint.FileBytes()) << folder;
  }
}

}  // namespace
}  // namespace tokline
