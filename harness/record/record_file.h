// Files of records, validated when written and when read, and appended one whole line at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/record/record.h"

namespace tokline {

// Checks the form of every field, and that the figures of a row follow from its samples and cost.
// Throws InvalidArgument that names the field, its value and what is allowed.
void ValidateRecord(const Json& record);

// Appends to a file to which other processes may be appending too. Each line is either written
// whole or not at all: it is written under a lock, then synced, and an unfinished line that a
// killed writer left behind is cut off first.
class RecordWriter {
 public:
  // Opens the file or creates it. Throws RuntimeFailure with the path and the reason, also if the
  // file contains anything but records; such a file is left unchanged.
  explicit RecordWriter(const std::string& path);
  // Removes the file if this object created it and nothing was appended.
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Returns once the line is on disk. Throws InvalidArgument for an invalid record, and
  // RuntimeFailure if it cannot be written, in which case no part of it is.
  void Append(const Json& record);

 private:
  void Open();
  void RemoveIfEmpty() const;
  void RequireRecords() const;
  // Returns false if another writer removed the file before its first line was written.
  bool AppendLine(std::string_view line);

  std::string path_;
  int file_ = -1;
  bool made_ = false;
  bool appended_ = false;
};

// Whether this is a regular file that begins as record files do. Returns false for a file that
// cannot be read.
bool HoldsRecords(const std::string& path);

// Returns all records of a file, which may be empty. A last line without a newline is skipped and
// stored in `unfinished`, if given ("" if there is no such line). Throws InvalidArgument with the
// file and the line if a record is not valid, RuntimeFailure if the file cannot be read.
std::vector<Json> ReadRecords(const std::string& path, std::string* unfinished = nullptr);

}  // namespace tokline
