// Draws the shapes of a sweep with integers only: the standard library's distributions differ
// between platforms.
#include "benches/sweep.h"

#include <algorithm>
#include <array>
#include <bit>
#include <initializer_list>
#include <vector>

#include "harness/platform/random_values.h"
#include "kernels/common/error.h"
#include "kernels/common/rounding.h"
#include "kernels/kernel_list.h"

namespace tokline::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr PublishedModel kModels[] = {
    // name, hidden, inner, hq, hk, head_dim, vocab
    {"gpt2", 768, 3072, 12, 12, 64, 50257},
    {"gpt2-medium", 1024, 4096, 16, 16, 64, 50257},
    {"gpt2-xl", 1600, 6400, 25, 25, 64, 50257},
    {"SmolLM2-135M", 576, 1536, 9, 3, 64, 49152},
    {"SmolLM2-360M", 960, 2560, 15, 5, 64, 49152},
    {"SmolLM2-1.7B", 2048, 8192, 32, 32, 64, 49152},
    {"TinyLlama-1.1B", 2048, 5632, 32, 4, 64, 32000},
    {"Llama-3.2-1B", 2048, 8192, 32, 8, 64, 128256},
    {"Llama-3.2-3B", 3072, 8192, 24, 8, 128, 128256},
    {"Llama-3.1-8B", 4096, 14336, 32, 8, 128, 128256},
    {"Llama-3.1-70B", 8192, 28672, 64, 8, 128, 128256},
    {"Llama-3.1-405B", 16384, 53248, 128, 8, 128, 128256},
    {"Llama-2-7B", 4096, 11008, 32, 32, 128, 32000},
    {"Llama-2-13B", 5120, 13824, 40, 40, 128, 32000},
    {"Mistral-7B-v0.3", 4096, 14336, 32, 8, 128, 32768},
    {"Mistral-Nemo-2407", 5120, 14336, 32, 8, 128, 131072},
    {"Mistral-Large-2407", 12288, 28672, 96, 8, 128, 32768},
    {"Yi-34B", 7168, 20480, 56, 8, 128, 64000},
    {"ERNIE-4.5-0.3B", 1024, 3072, 16, 2, 128, 103424},
    {"Qwen2.5-0.5B", 896, 4864, 14, 2, 64, 151936},
    {"Qwen2.5-1.5B", 1536, 8960, 12, 2, 128, 151936},
    {"Qwen2.5-3B", 2048, 11008, 16, 2, 128, 151936},
    {"Qwen2.5-7B", 3584, 18944, 28, 4, 128, 152064},
    {"Qwen2.5-72B", 8192, 29568, 64, 8, 128, 152064},
    {"Qwen3-0.6B", 1024, 3072, 16, 8, 128, 151936},
    {"Qwen3-1.7B", 2048, 6144, 16, 8, 128, 151936},
    {"Qwen3-4B", 2560, 9728, 32, 8, 128, 151936},
    {"Qwen3-8B", 4096, 12288, 32, 8, 128, 151936},
    {"Qwen3-14B", 5120, 17408, 40, 8, 128, 151936},
    {"Qwen3-32B", 5120, 25600, 64, 8, 128, 151936}};
static_assert(std::size(kModels) == 30);

class Draw {
 public:
  Draw(std::string_view kernel, uint64_t seed, int64_t index, const SweepRanges& ranges)
      : ranges(ranges) {
    for (const char letter : kernel) Mix(static_cast<unsigned char>(letter));
    Mix(seed);
    Mix(static_cast<uint64_t>(index));
  }

  int64_t Between(Range range) {
    const auto count = static_cast<uint64_t>(range.most - range.least) + 1;
    return range.least + static_cast<int64_t>(RandomBits(seed_, drawn_++) % count);
  }
  // Each power of two up to the range's end is equally likely to be the last below the value.
  int64_t Spread(Range range) {
    const auto power = [](int64_t value) {
      return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(value))) - 1;
    };
    const int64_t least = int64_t{1} << Between({power(range.least), power(range.most)});
    return Between({std::max(least, range.least), std::min(2 * least - 1, range.most)});
  }
  bool OneIn(int64_t count) { return Between({1, count}) == 1; }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[Between({0, static_cast<int64_t>(values.size()) - 1})];
  }

  PublishedModel Model() {
    PublishedModel model = kModels[Between({0, std::ssize(kModels) - 1})];
    if (ranges.shrink == 1) return model;
    for (int64_t* size : {&model.hidden, &model.inner, &model.vocab}) {
      *size = RoundUp(*size / ranges.shrink, int64_t{64});
    }
    return model;
  }

  const SweepRanges& ranges;

 private:
  void Mix(uint64_t value) { seed_ = RandomBits(seed_ ^ value, 0); }

  uint64_t seed_ = 0;
  uint64_t drawn_ = 0;
};

// Contexts of a batch: equal, ragged, few long among short ones, or by Zipf's law.
std::vector<int64_t> Contexts(Draw& draw) {
  const int64_t batch = draw.Spread(draw.ranges.batch);
  const int64_t longest = draw.Spread(draw.ranges.context);
  std::vector<int64_t> lengths(static_cast<size_t>(batch), longest);
  switch (draw.Between({0, 3})) {
    case 0:
      break;
    case 1:
      for (int64_t& length : lengths) length = draw.Between({1, longest});
      break;
    case 2:
      for (int64_t& length : lengths) length = draw.OneIn(16) ? longest : DivideUp(longest, 64);
      break;
    default:
      for (int64_t rank = 1; rank <= batch; ++rank) {
        lengths[static_cast<size_t>(rank - 1)] = DivideUp(longest, rank);
      }
      for (int64_t i = batch - 1; i > 0; --i) {
        std::swap(lengths[static_cast<size_t>(i)],
                  lengths[static_cast<size_t>(draw.Between({0, i}))]);
      }
  }
  return lengths;
}

// The new tokens of each context: all of it, the last few, a chunk of bounded size, or a chunk of
// some sequences next to a decode step of others.
std::vector<int64_t> NewTokens(Draw& draw, std::vector<int64_t> contexts) {
  const int64_t kind = draw.Between({0, 3});
  const int64_t chunk = draw.Spread(draw.ranges.tokens);
  if (kind == 0) return contexts;
  for (int64_t& length : contexts) {
    length = std::min(length, kind == 1                    ? draw.Between({1, chunk})
                              : kind == 3 && draw.OneIn(2) ? 1
                                                           : chunk);
  }
  return contexts;
}

void AddLayout(Draw& draw, Json& shape) {
  shape["hk"] = draw.Spread(draw.ranges.kv_heads);
  shape["head_dim"] = draw.Of({64, 128});
  shape["order"] = draw.Of({"hnd", "nhd"});
  shape["pages"] = {draw.Of({16, 32, 64, 128, 256})};
}

// The query heads of the layout's KV heads.
int64_t QueryHeads(Draw& draw, const Json& shape) {
  return shape["hk"].get<int64_t>() * draw.Between(draw.ranges.groups);
}

Json Decode(Draw& draw) {
  Json shape{{"lens", Contexts(draw)}};
  AddLayout(draw, shape);
  shape["hq"] = QueryHeads(draw, shape);
  return shape;
}

Json Prefill(Draw& draw) {
  const std::vector<int64_t> contexts = Contexts(draw);
  Json shape{{"q", NewTokens(draw, contexts)}, {"kv", contexts}};
  AddLayout(draw, shape);
  shape["hq"] = QueryHeads(draw, shape);
  return shape;
}

Json Append(Draw& draw) {
  Json shape{{"tokens", draw.Spread(draw.ranges.appended)}, {"one", draw.Between({0, 1})}};
  AddLayout(draw, shape);
  if (draw.OneIn(2)) shape["hq"] = QueryHeads(draw, shape);
  return shape;
}

Json Gather(Draw& draw) {
  Json shape{{"lens", Contexts(draw)}};
  AddLayout(draw, shape);
  return shape;
}

Json Tokens(Draw& draw) { return {{"tokens", {draw.Spread(draw.ranges.tokens)}}}; }

Json Qkv(Draw& draw) {
  const PublishedModel model = draw.Model();
  Json shape = Tokens(draw);
  shape.update({{"hidden", model.hidden},
                {"hq", model.hq},
                {"hk", model.hk},
                {"head_dim", model.head_dim},
                {"append", {draw.Between({0, 1})}}});
  return shape;
}

Json Linear(Draw& draw) {
  const PublishedModel model = draw.Model();
  Json shape = Tokens(draw);
  const int64_t q = model.hq * model.head_dim, k = model.hk * model.head_dim;
  const std::array<Json, 5> projections = {
      Json{{"in", model.hidden}, {"out", q + 2 * k}, {"norm", 1}},
      Json{{"in", q}, {"out", model.hidden}, {"residual", 1}},
      Json{{"in", model.hidden}, {"out", model.inner}, {"norm", 1}, {"gated", 1}},
      Json{{"in", model.inner}, {"out", model.hidden}, {"residual", 1}},
      Json{{"in", model.hidden}, {"out", model.vocab}, {"norm", 1}, {"out_f32", 1}}};
  shape.update(projections[static_cast<size_t>(draw.Between({0, 4}))]);
  return shape;
}

Json Norm(Draw& draw) {
  const bool layer = draw.OneIn(4);
  Json shape = Tokens(draw);
  shape.update({{"kind", layer ? "layernorm" : "rmsnorm"}, {"hidden", draw.Model().hidden}});
  if (!layer) shape["add"] = draw.Between({0, 1});
  return shape;
}

Json AllReduce(Draw& draw) {
  Json shape = Tokens(draw);
  shape.update({{"ranks", draw.Between({1, 8})}, {"hidden", draw.Model().hidden}});
  return shape;
}

Json Activation(Draw& draw) {
  Json shape = Tokens(draw);
  shape.update(
      {{"kind", draw.Of({"gated_silu", "gelu_tanh"})}, {"intermediate", draw.Model().inner}});
  return shape;
}

Json Embedding(Draw& draw) {
  const PublishedModel model = draw.Model();
  Json shape = Tokens(draw);
  shape.update({{"vocab", model.vocab}, {"hidden", model.hidden}});
  if (draw.OneIn(4)) shape["positions"] = draw.Spread(draw.ranges.context);
  return shape;
}

Json Sampling(Draw& draw) {
  Json shape{{"rows", {draw.Spread(draw.ranges.batch)}}, {"vocab", draw.Model().vocab}};
  if (draw.OneIn(4)) return shape;  // greedy
  shape.update({{"temperature", draw.Of({0.5, 0.75, 1.0})},
                {"top_k", draw.Of({0, 1, 20, 50, 200})},
                {"top_p", draw.Of({0.5, 0.875, 1.0})}});
  return shape;
}

Json Step(Draw& draw) {
  const PublishedModel model = draw.Model();
  return {{"layers", draw.Spread(draw.ranges.layers)},
          {"hidden", model.hidden},
          {"inner", model.inner},
          {"hq", model.hq},
          {"hk", model.hk},
          {"head_dim", model.head_dim},
          {"vocab", model.vocab},
          {"qk_norm", draw.Between({0, 1})},
          {"tokens", {draw.Between({1, 4})}},
          {"context", {draw.Spread(draw.ranges.context)}}};
}

struct Family {
  std::string_view kernel, name;
  Json (*draw)(Draw&);
};
constexpr Family kFamilies[] = {{"activation", "activation", Activation},
                                {"all_reduce_norm", "all_reduce", AllReduce},
                                {"chunk_decode", "decode", Decode},
                                {"decode_step", "step", Step},
                                {"embedding", "embedding", Embedding},
                                {"kv_append", "append", Append},
                                {"linear", "linear", Linear},
                                {"norm", "norm", Norm},
                                {"paged_gather", "gather", Gather},
                                {"paged_prefill", "prefill", Prefill},
                                {"rmsnorm_qkv", "qkv", Qkv},
                                {"sampling", "sampling", Sampling}};
static_assert(std::ranges::all_of(kKernelNames,
                                  [](std::string_view name) {
                                    return std::ranges::find(kFamilies, name, &Family::kernel) !=
                                           std::end(kFamilies);
                                  }),
              "a kernel has no drawn shapes");

}  // namespace

std::span<const PublishedModel> PublishedModels() { return kModels; }

Sweep DrawSweep(const std::string& kernel, int64_t count, uint64_t seed, const SweepRanges& ranges,
                const SweepRefusal& refusal) {
  const auto* const family = std::ranges::find(kFamilies, kernel, &Family::kernel);
  if (family == std::end(kFamilies)) throw RuntimeFailure("no sweep draws shapes of " + kernel);
  const std::string name(family->name);
  Sweep sweep{.shapes = {.name = StrCat("sweep ", seed), .families = {{name, Json::array()}}}};
  for (int64_t i = 0; i < count; ++i) {
    constexpr int64_t kMostDraws = 1000;
    Draw draw(kernel, seed, i, ranges);
    std::string refused;
    for (int64_t drawn = 0;; ++drawn) {
      if (drawn == kMostDraws) {
        throw RuntimeFailure(
            StrCat("no shape of ", kMostDraws, " draws can be run; the last: ", refused));
      }
      Json shape{{"name", StrCat("sweep:", seed, ":", i)}};
      shape.update(family->draw(draw));
      if (kernel != "sampling") shape["dtype"] = draw.Of({"bf16", "f16"});
      refused = refusal(name, shape);
      if (refused.empty()) {
        sweep.shapes.families[name].push_back(std::move(shape));
        break;
      }
      ++sweep.redrawn[refused];
    }
  }
  return sweep;
}

}  // namespace tokline::bench
