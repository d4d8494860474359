// The `post_processor` of tokenizer.json: the special tokens that are added around a text.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/platform/json_node.h"
#include "harness/text/added_tokens.h"
#include "harness/text/bpe_model.h"

namespace tokline {

class PostProcessor {
 public:
  PostProcessor() = default;  // adds nothing
  // Supports ByteLevel (which only changes offsets), TemplateProcessing for one text, and Sequence
  // of these. Others are refused by name. The template's ids must be tokens of the file.
  static PostProcessor Read(const JsonNode& node, const BpeModel& model, const AddedTokens& added);

  const std::vector<int32_t>& Before() const { return before_; }
  const std::vector<int32_t>& After() const { return after_; }

 private:
  struct Context {
    const BpeModel& model;
    const AddedTokens& added;
  };
  void Add(const JsonNode& node, const Context& context, int depth);
  void AddTemplate(const JsonNode& node, const Context& context);

  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
};

}  // namespace tokline
