// PTX: as much of its text as says what kernels it holds.

#include <algorithm>
#include <ctype.h>

#include "driver.hpp"
#include "image.hpp"

namespace mock {
namespace {

// The text split into words, numbers and punctuation, without comments.
std::vector<std::string> split(const std::string &text) {
    std::vector<std::string> words;
    const auto in_word = [](char c) {
        return isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '$';
    };
    for (size_t at = 0; at < text.size();) {
        if (isspace(static_cast<unsigned char>(text[at]))) {
            ++at;
        } else if (text.compare(at, 2, "//") == 0) {
            at = std::min(text.find('\n', at), text.size());
        } else if (text.compare(at, 2, "/*") == 0) {
            const size_t end = text.find("*/", at + 2);
            at = end == std::string::npos ? text.size() : end + 2;
        } else {
            size_t end = at + 1;
            if (in_word(text[at]))
                while (end < text.size() && in_word(text[end]))
                    ++end;
            words.push_back(text.substr(at, end - at));
            at = end;
        }
    }
    return words;
}

// "9.0" and "sm_90a" as 90.
int digits(const std::string &text) {
    int number = 0;
    for (const char c : text)
        if (c >= '0' && c <= '9')
            number = 10 * number + (c - '0');
    return number;
}

// The name, parameters and bounds of a kernel; `at` is behind ".entry" and ends before the body.
ImageKernel read_entry(const std::vector<std::string> &words, size_t &at) {
    ImageKernel kernel;
    const auto word = [&](size_t place) { return place < words.size() ? words[place] : std::string("{"); };
    kernel.name = word(at++);
    if (word(at) == "(") {
        // A struct by value is an array of bytes: .param .align 8 .b8 name[24]
        uint32_t bytes = 0;
        for (++at; word(at) != ")" && word(at) != "{"; ++at) {
            const std::string &of = words[at];
            const bool is_type = of.size() > 2 && of[0] == '.' && isdigit(static_cast<unsigned char>(of[2]));
            if (is_type || of == "[") {
                kernel.parameter_bytes -= of == "[" ? bytes : 0;
                bytes = is_type ? uint32_t(digits(of)) / 8 : bytes * uint32_t(digits(word(at + 1)));
                kernel.parameter_bytes += bytes;
            }
        }
    }
    for (; at < words.size() && words[at] != "{" && words[at] != ";"; ++at) {
        if (words[at] != ".maxntid" && words[at] != ".reqntid")
            continue;
        uint64_t threads = 1;
        do
            threads *= uint64_t(digits(word(++at)));
        while (word(++at) == ",");
        --at;
        kernel.max_threads = int(std::min<uint64_t>(threads, MAX_THREADS));
    }
    return kernel;
}

} // namespace

bool is_ptx(const char *text) {
    for (;;) {
        while (isspace(static_cast<unsigned char>(*text)))
            ++text;
        if (text[0] != '/' || text[1] != '/')
            break;
        while (*text && *text != '\n')
            ++text;
    }
    for (const char *expected = ".version"; *expected; ++expected, ++text)
        if (*text != *expected)
            return false;
    return true;
}

Image read_ptx(const std::string &text) {
    const std::vector<std::string> words = split(text);
    Image image;
    for (size_t at = 0; at + 1 < words.size(); ++at) {
        if (words[at] == ".version") {
            image.ptx_version = digits(words[at + 1]);
        } else if (words[at] == ".target") {
            const std::string &target = words[at + 1];
            image.architecture = image.virtual_architecture = digits(target);
            image.specific = target.back() == 'a';
        } else if (words[at] == ".entry") {
            image.kernels.push_back(read_entry(words, ++at));
        }
    }
    if (image.ptx_version == 0 || image.architecture == 0)
        refuse(CUDA_ERROR_INVALID_PTX, "the PTX has no .version or no .target");
    return image;
}

} // namespace mock
