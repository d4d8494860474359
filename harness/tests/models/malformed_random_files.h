// Random valid safetensors files, and the same files with one fault each, generated from a seed.
#pragma once

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/tests/models/malformed_files.h"
#include "harness/tests/models/model_files.h"
#include "kernels/common/error.h"

namespace tokline::testing {

// A file in parts, so that one of them can be corrupted before it is written.
struct RandomFile {
  struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<std::string> shape;
    int64_t begin = 0;
    int64_t end = 0;
    std::string offsets = {};  // replaces [begin, end] if not empty
    std::string more = {};     // follows the three fields

    void Move(int64_t bytes) { begin += bytes, end += bytes; }
    std::string Entry() const {
      std::string extents;
      for (const std::string& extent : shape) extents += (extents.empty() ? "" : ",") + extent;
      return StrCat(R"({"dtype":")", dtype, R"(","shape":[)", extents, R"(],"data_offsets":)",
                    offsets.empty() ? StrCat("[", begin, ",", end, "]") : offsets, more, "}");
    }
  };

  explicit RandomFile(uint64_t seed) : rng(seed) {
    constexpr std::pair<std::string_view, int64_t> kTypes[] = {{"U8", 1},  {"BF16", 2}, {"F16", 2},
                                                               {"F32", 4}, {"I64", 8},  {"F64", 8}};
    const int64_t count = 2 + Below(5);
    for (int64_t i = 0; i < count; ++i) {
      const auto& [dtype, element_bytes] = kTypes[Below(std::size(kTypes))];
      Tensor tensor{.name = StrCat("layer.", i, ".weight"), .dtype = std::string(dtype)};
      int64_t bytes = element_bytes;
      for (int64_t rank = Below(4); rank > 0; --rank) {
        // The first two tensors are never empty, because most faults need bytes to be wrong about.
        const int64_t extent = i < 2 ? 1 + Below(5) : Below(5);
        tensor.shape.push_back(std::to_string(extent));
        bytes *= extent;
      }
      tensor.begin = data_bytes;
      tensor.end = data_bytes += bytes;
      tensors.push_back(std::move(tensor));
    }
  }

  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(rng() % static_cast<uint64_t>(bound));
  }
  Tensor& Full() { return tensors[Below(2)]; }

  std::string Header() const {
    std::string text = R"({"__metadata__":{"format":"pt"})";
    for (const Tensor& tensor : tensors) text += StrCat(",\"", tensor.name, "\":", tensor.Entry());
    return text + "}";
  }
  int64_t HeaderBytes() const { return static_cast<int64_t>(Header().size()); }
  std::string File() const { return SafetensorsFile(Header(), data_bytes); }
  std::string FileWithLength(uint64_t header_bytes) const {
    return LengthPrefix(header_bytes) + File().substr(8);
  }
  std::string FileWithout(int64_t last_bytes) const {
    const std::string file = File();
    return file.substr(0, file.size() - last_bytes);
  }
  std::string FileWithShape(std::vector<std::string> extents) {
    std::ranges::move(extents, std::back_inserter(Full().shape));
    return File();
  }
  std::string FileWithOffsets(std::string offsets) {
    Full().offsets = std::move(offsets);
    return File();
  }

  std::mt19937_64 rng;
  std::vector<Tensor> tensors;
  int64_t data_bytes = 0;
};

struct Fault {
  const char* name;
  std::string (*spoil)(RandomFile& file);  // returns the corrupted file
  const char* says;
};

inline constexpr Fault kFaults[] = {
    {"LengthBeyondTheFile",
     [](RandomFile& file) {
       return file.FileWithLength(file.File().size() - 7 + file.Below(1000));
     },
     "allowed are 1 to"},
    {"LengthAboveInt64",
     [](RandomFile& file) { return file.FileWithLength(file.rng() | uint64_t{1} << 63); },
     "allowed are 1 to"},
    {"LengthTooShort",
     [](RandomFile& file) { return file.FileWithLength(1 + file.Below(file.HeaderBytes() - 1)); },
     "not valid JSON"},
    {"LengthIntoTheData",
     [](RandomFile& file) {
       return file.FileWithLength(file.HeaderBytes() + 1 + file.Below(file.data_bytes));
     },
     "not valid JSON"},
    {"DataCut", [](RandomFile& file) { return file.FileWithout(1 + file.Below(file.data_bytes)); },
     "(truncated?)"},
    {"HeaderCut",
     [](RandomFile& file) {
       return file.FileWithout(file.data_bytes + 1 + file.Below(file.HeaderBytes()));
     },
     "(truncated, or"},
    {"BytesAfterTheData",
     [](RandomFile& file) { return file.File() + std::string(1 + file.Below(100), 'x'); },
     "the tensors end at byte"},
    {"Hole",
     [](RandomFile& file) {
       const int64_t hole = 1 + file.Below(64);
       for (size_t i = file.Below(2); i < file.tensors.size(); ++i) file.tensors[i].Move(hole);
       file.data_bytes += hole;
       return file.File();
     },
     "holes are not allowed"},
    {"Overlap",
     [](RandomFile& file) {
       file.tensors[1].Move(-1 - file.Below(file.tensors[1].begin));
       return file.File();
     },
     "overlaps"},
    {"BeyondTheData",
     [](RandomFile& file) {
       file.tensors.back().Move(1 + (file.rng() >> 2));
       return file.File();
     },
     "ends at byte"},
    {"OneExtentTooMany",
     [](RandomFile& file) { return file.FileWithShape({std::to_string(2 + file.Below(1000))}); },
     " make "},
    {"ProductWrapsToItself",  // (2^62 + 1) * 4 is 4 modulo 2^64
     [](RandomFile& file) {
       auto& tensor = file.Full();
       tensor.dtype = "F32";
       tensor.shape = {"4611686018427387905"};
       return file.File();
     },
     "more than 2^63 - 1 bytes"},
    {"ProductWrapsToZero",
     [](RandomFile& file) {
       return file.FileWithShape({"4294967296", std::to_string(4294967296 << file.Below(20))});
     },
     "more than 2^63 - 1 bytes"},
    {"ExtentNegative",
     [](RandomFile& file) { return file.FileWithShape({StrCat(-1 - file.Below(100))}); },
     "in its shape; all must be integers from 0"},
    {"ExtentFraction",
     [](RandomFile& file) {
       return file.FileWithShape({StrCat(file.Below(100), file.Below(2) == 0 ? ".0" : "e1")});
     },
     "in its shape; all must be integers from 0"},
    {"ExtentAboveInt64",
     [](RandomFile& file) {
       return file.FileWithShape({std::to_string(file.rng() | uint64_t{1} << 63)});
     },
     "at most 2^63 - 1 is allowed"},
    {"ExtentAboveUint64",
     [](RandomFile& file) {
       return file.FileWithShape({StrCat(file.rng() | uint64_t{1} << 63, file.Below(10))});
     },
     "in its shape; all must be integers from 0"},
    {"DimensionsBeyondTheCap",
     [](RandomFile& file) { return file.FileWithShape(std::vector<std::string>(9, "1")); },
     "more than 8 dimensions"},
    {"DepthBomb",
     [](RandomFile& file) {
       return file.FileWithShape({std::string(1 + file.Below(100'000), '[')});
     },
     "an array in its shape"},
    {"OffsetsSwapped",
     [](RandomFile& file) {
       auto& tensor = file.Full();
       std::swap(tensor.begin, tensor.end);
       return file.File();
     },
     "must not exceed"},
    {"OffsetNegative",
     [](RandomFile& file) { return file.FileWithOffsets(StrCat("[", -1 - file.Below(99), ",0]")); },
     "in its data_offsets; both must be integers from 0"},
    {"OffsetAboveInt64",
     [](RandomFile& file) {
       return file.FileWithOffsets(StrCat("[0,", file.rng() | uint64_t{1} << 63, "]"));
     },
     "at most 2^63 - 1 is allowed"},
    {"ThirdOffset",
     [](RandomFile& file) { return file.FileWithOffsets(StrCat("[0,0,", file.Below(99), "]")); },
     "more than 2 data_offsets"},
    {"DtypeInLowerCase",
     [](RandomFile& file) {
       for (char& c : file.Full().dtype) c |= 0x20;
       return file.File();
     },
     "known are"},
    {"NameTwice",
     [](RandomFile& file) {
       file.tensors[1].name = file.tensors[0].name;
       return file.File();
     },
     "twice"},
    {"FieldTwice",
     [](RandomFile& file) {
       file.Full().more = R"(,"dtype":"F32")";
       return file.File();
     },
     "\"dtype\" twice"},
    {"UnknownField",
     [](RandomFile& file) {
       file.Full().more = StrCat(",\"field", file.Below(100), "\":1");
       return file.File();
     },
     "allowed are dtype, shape, data_offsets"},
    {"NameNotUtf8",
     [](RandomFile& file) {
       file.Full().name.insert(file.Below(8), 1, static_cast<char>(0x80 + file.Below(0x80)));
       return file.File();
     },
     "not valid JSON"},
    {"NulInTheHeader",
     [](RandomFile& file) {
       std::string spoilt = file.File();
       spoilt[8 + 1 + file.Below(file.HeaderBytes() - 1)] = '\0';
       return spoilt;
     },
     "is 0"},
};

inline std::string RandomGoodFile(uint64_t seed) { return RandomFile(seed).File(); }

// Cycles through the faults by seed.
inline Malformed MalformedRandomFile(uint64_t seed) {
  const Fault& fault = kFaults[seed % std::size(kFaults)];
  RandomFile file(seed);
  return {fault.name, fault.spoil(file), {fault.says}};
}

}  // namespace tokline::testing
