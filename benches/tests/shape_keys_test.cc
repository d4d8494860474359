// Gives every key of every shape family values that it does not allow, and checks that the bench
// program refuses each with exit code 2 and one line that names the shape and the key, in little
// time and memory.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "benches/shapes.h"
#include "harness/tests/cli/program_run.h"

namespace tokline::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

enum class Kind { kCount, kCountOrZero, kFlag, kRows, kFlags, kLengths, kNumber, kName };

struct Key {
  std::string name;
  Kind kind;
  bool required = true;
};

struct Family {
  std::string program;
  Json shape;  // a good one, small
  std::vector<Key> keys;
};

// The keys, and those of every family whose K and V have pages.
std::vector<Key> WithPages(std::vector<Key> keys) {
  keys.insert(keys.end(), {{"hk", Kind::kCount},
                           {"head_dim", Kind::kCount, false},
                           {"order", Kind::kName, false},
                           {"pages", Kind::kRows, false}});
  return keys;
}

// What docs/measuring.md says about the keys.
const std::map<std::string, Family>& Families() {
  using enum Kind;
  static const std::map<std::string, Family> families = [] {
    std::map<std::string, Family> all = {
        {"decode",
         {"chunk_decode",
          {{"lens", {40}}, {"hq", 4}, {"hk", 2}, {"head_dim", 64}, {"pages", {16}}},
          WithPages({{"lens", kLengths}, {"hq", kCount}})}},
        {"cascade",
         {"chunk_decode",
          {{"batch", 2}, {"shared", 32}, {"unique", 16}, {"hq", 4}, {"hk", 2}},
          WithPages({{"batch", kCount}, {"shared", kCount}, {"unique", kCount}, {"hq", kCount}})}},
        {"prefill",
         {"paged_prefill",
          {{"q", {3}}, {"kv", {20}}, {"hq", 4}, {"hk", 2}, {"head_dim", 64}},
          WithPages({{"q", kLengths}, {"kv", kLengths}, {"hq", kCount}})}},
        {"append",
         {"kv_append",
          {{"tokens", 4}, {"hk", 2}},
          WithPages({{"tokens", kCount}, {"one", kFlag, false}, {"hq", kCountOrZero, false}})}},
        {"gather",
         {"paged_gather",
          {{"batch", 2}, {"len", 20}, {"hk", 2}},
          WithPages({{"batch", kCount}, {"len", kCount}})}},
        {"qkv",
         {"rmsnorm_qkv",
          {{"tokens", {1}}, {"hidden", 64}, {"hq", 2}, {"hk", 1}},
          {{"tokens", kRows},
           {"hidden", kCount},
           {"hq", kCount},
           {"hk", kCount},
           {"head_dim", kCount, false},
           {"append", kFlags, false}}}},
        {"step",
         {"decode_step",
          {{"layers", 1},
           {"hidden", 64},
           {"inner", 64},
           {"hq", 2},
           {"hk", 1},
           {"vocab", 64},
           {"tokens", {1}},
           {"context", {16}}},
          {{"layers", kCount},
           {"hidden", kCount},
           {"inner", kCount},
           {"hq", kCount},
           {"hk", kCount},
           {"vocab", kCount},
           {"head_dim", kCount, false},
           {"qk_norm", kFlag, false},
           {"tokens", kRows},
           {"context", kRows}}}},
        {"linear",
         {"linear",
          {{"tokens", {1}}, {"in", 64}, {"out", 64}},
          {{"tokens", kRows},
           {"in", kCount},
           {"out", kCount},
           {"norm", kFlag, false},
           {"gated", kFlag, false},
           {"residual", kFlag, false},
           {"out_f32", kFlag, false}}}},
        {"norm",
         {"norm",
          {{"kind", "rmsnorm"}, {"tokens", {1}}, {"hidden", 64}},
          {{"kind", kName}, {"tokens", kRows}, {"hidden", kCount}, {"add", kFlag, false}}}},
        {"all_reduce",
         {"all_reduce_norm",
          {{"ranks", 2}, {"tokens", {1}}, {"hidden", 64}},
          {{"ranks", kCount}, {"tokens", kRows}, {"hidden", kCount}}}},
        {"activation",
         {"activation",
          {{"kind", "gelu_tanh"}, {"tokens", {1}}, {"intermediate", 64}},
          {{"kind", kName}, {"tokens", kRows}, {"intermediate", kCount}}}},
        {"embedding",
         {"embedding",
          {{"tokens", {1}}, {"vocab", 64}, {"hidden", 64}},
          {{"tokens", kRows},
           {"vocab", kCount},
           {"hidden", kCount},
           {"positions", kCountOrZero, false}}}},
        {"sampling",
         {"sampling",
          {{"rows", {1}}, {"vocab", 64}, {"temperature", 1}},
          {{"rows", kRows},
           {"vocab", kCount},
           {"temperature", kNumber, false},
           {"top_k", kCountOrZero, false},
           {"top_p", kNumber, false}}}}};
    for (auto& [name, family] : all) family.keys.push_back({"dtype", kName, false});
    return all;
  }();
  return families;
}

std::vector<Json> BadValues(Kind kind) {
  const auto parse = [](const char* text) {
    const Json list = Json::parse(text);
    return std::vector<Json>(list.begin(), list.end());
  };
  const std::vector<Json> never = parse(R"([null, true, "", "x\u001b", {}, [[]], ["1"], [null]])");
  const std::vector<Json> of_kind = [&] {
    switch (kind) {
      case Kind::kCount:
        return parse("[0, -1, 2000000000, 1000000000000000000, 1e18, 1.5, [], [1]]");
      case Kind::kCountOrZero:
        return parse("[-1, 2000000000, 1000000000000000000, 1e18, 1.5, [], [1]]");
      case Kind::kFlag:
        return parse("[2, -1, 1000000000000000000, 1.5, [], [1]]");
      case Kind::kRows:
        return parse("[0, 1, [], [0], [-1], [2000000000], [1000000000000000000], [1.5], [1, 1]]");
      case Kind::kFlags:
        return parse("[0, 1, [], [2], [-1], [1000000000000000000], [0, 0]]");
      case Kind::kLengths:
        return parse("[0, 1, [], [0], [-1], [2000000000], [1000000000000000000], [1.5], [9, -9]]");
      case Kind::kNumber:
        return parse("[-1, []]");
      case Kind::kName:
        return parse("[0, -1, []]");
    }
    return std::vector<Json>();
  }();
  std::vector<Json> values = never;
  values.insert(values.end(), of_kind.begin(), of_kind.end());
  return values;
}

class ShapeKeysTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    program_ = "bench_" + Of().program;
    main_ = reinterpret_cast<int (*)(int, char**)>(::dlsym(RTLD_DEFAULT, program_.c_str()));
    if (main_ == nullptr) GTEST_SKIP() << program_ << " is not built";
  }
  const Family& Of() const { return Families().at(GetParam()); }

  int Run(Json shape) {
    shape["name"] = "it";
    testing::WriteFile(folder_ / "shapes.json", Json{{GetParam(), {shape}}}.dump());
    return RunWith({"--shapes", folder_ / "shapes.json"});
  }
  int RunAxes(const std::vector<std::string>& axes) {
    std::vector<std::string> args;
    for (const std::string& axis : axes) args.push_back("--axis=" + axis);
    return RunWith(args);
  }
  // Runs the program's main function in a child with 20 s of CPU time and 2 GiB of memory. Returns
  // the exit code, or minus the signal; stores standard error.
  int RunWith(std::vector<std::string> args) {
    args.insert(args.begin(), {program_, "--device=cpu", "--verify-only"});
    std::vector<char*> pointers;
    for (std::string& arg : args) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit cpu{.rlim_cur = 20, .rlim_max = 20};
      const rlimit memory{.rlim_cur = rlim_t{2} << 30, .rlim_max = rlim_t{2} << 30};
      ::setrlimit(RLIMIT_CPU, &cpu);
      ::setrlimit(RLIMIT_AS, &memory);
      const int null = ::open("/dev/null", O_WRONLY);
      ::dup2(null, 1);
      ::dup2(::open((folder_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
      std::exit(main_(static_cast<int>(args.size()), pointers.data()));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    error_ = testing::ReadFile(folder_ / "err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void ExpectRefusal(const Json& shape, const std::string& key) {
    EXPECT_EQ(Run(shape), 2) << shape << "\n" << error_;
    EXPECT_EQ(std::ranges::count(error_, '\n'), 1) << error_;
    EXPECT_THAT(error_, AllOf(HasSubstr(": " + GetParam() + ": it: "), HasSubstr(key))) << shape;
    EXPECT_EQ(std::ranges::count_if(error_, [](char c) { return c != '\n' && c < ' '; }), 0);
  }

  std::string program_;
  int (*main_)(int, char**) = nullptr;
  testing::TempFolder folder_;
  std::string error_;
};

std::vector<std::string> FamilyNames() { return {KnownFamilies().begin(), KnownFamilies().end()}; }
INSTANTIATE_TEST_SUITE_P(Families, ShapeKeysTest, ::testing::ValuesIn(FamilyNames()),
                         [](const auto& suite) { return suite.param; });

TEST_P(ShapeKeysTest, AGoodShapeRuns) { EXPECT_EQ(Run(Of().shape), 0) << error_; }

TEST_P(ShapeKeysTest, NoKeyTakesWhatItDoesNotAllow) {
  for (const Key& key : Of().keys) {
    for (const Json& value : BadValues(key.kind)) {
      Json shape = Of().shape;
      shape[key.name] = value;
      ExpectRefusal(shape, key.name);
    }
  }
}

TEST_P(ShapeKeysTest, RequiredKeysAndNoOthersAreNeeded) {
  for (const Key& key : Of().keys) {
    Json shape = Of().shape;
    shape.erase(key.name);
    if (key.required) {
      ExpectRefusal(shape, key.name);
    } else {
      EXPECT_EQ(Run(shape), 0) << shape << "\n" << error_;
    }
  }
  Json shape = Of().shape;
  shape["un\x1bknown"] = 1;
  ExpectRefusal(shape, "unknown key");
}

TEST_P(ShapeKeysTest, EveryAxisRunsAndTakesNoBadValue) {
  const Json& axes = AxisDefaults().at(GetParam());
  std::vector<std::string> small;
  for (const Key& key : Of().keys) {
    if (!axes.contains(key.name)) continue;  // lists of lengths, for which there are short forms
    const Json& value = Of().shape.contains(key.name) ? Of().shape[key.name] : axes[key.name];
    const std::string text = value.is_array() ? value[0].dump() : value.dump();
    small.push_back(key.name + "=" + (value.is_string() ? value.get<std::string>() : text));
  }
  for (const auto& [key, value] : axes.items()) {
    if (key.find("len") != key.npos && !Of().shape.contains(key)) small.push_back(key + "=16");
    if (key == "batch" && !Of().shape.contains(key)) small.push_back("batch=2");
    const std::string sign = key == "temperature" ? "-" : "";  // may be large
    for (const std::string& bad : std::vector<std::string>{"x", "", "-1", "\xff", sign + "1e18",
                                                           sign + "1000000000000000000000"}) {
      std::vector<std::string> given = {key + "=" + bad};
      if (GetParam() == "cascade" && key != "shared") given.push_back("shared=9");
      EXPECT_EQ(RunAxes(given), 2) << given[0] << "\n" << error_;
      EXPECT_EQ(std::ranges::count(error_, '\n'), 1) << error_;
      EXPECT_THAT(error_, AllOf(HasSubstr("--axis: " + GetParam() + ": "), HasSubstr(key)));
    }
  }
  EXPECT_EQ(RunAxes(small), 0) << Joined(small) << "\n" << error_;
}

// Each number is allowed, but no machine has enough memory for them.
TEST_P(ShapeKeysTest, AShapeThatDoesNotFitIsRefusedSoon) {
  Json shape = Of().shape;
  for (const Key& key : Of().keys) {
    const bool few = GetParam() == "step";
    if (key.kind == Kind::kRows && key.name != "pages" && !few) shape[key.name] = {kTokens.most};
    if (key.kind == Kind::kLengths) shape[key.name] = Json(16, kTokens.most);
    if (key.kind != Kind::kCount) continue;
    shape[key.name] = key.name.starts_with('h') && key.name != "hidden" ? kHeads.most
                      : key.name == "batch"                             ? 16
                      : key.name == "ranks"                             ? 8
                                                                        : kTokens.most;
  }
  EXPECT_EQ(Run(shape), 1) << shape << "\n" << error_;
}

}  // namespace
}  // namespace tokline::bench
