// Cubins: ELF files whose sections .nv.info say what kernels need. No manual describes them; this is what CUDA 13.0
// writes.

#include <algorithm>

#include "bytes.hpp"
#include "image.hpp"

namespace mock {
namespace {

constexpr uint16_t EM_CUDA = 190;
// Types of sections.
constexpr uint32_t SYMBOL_TABLE = 2;
constexpr uint32_t NO_BYTES = 8;
// The bit of a symbol's st_other that marks a kernel, and the type of its st_info.
constexpr uint8_t ENTRY = 0x10;
constexpr uint8_t FUNCTION = 2;

// Attributes of .nv.info.
enum : uint8_t {
    MAX_THREADS_OF_BLOCK = 0x05,
    REQUIRED_THREADS = 0x10,
    FRAME_SIZE = 0x11,
    PARAMETER = 0x17,
    PARAMETER_BYTES = 0x19,
    REGISTER_COUNT = 0x2f,
};
// The attribute of .nv.compat that is 1 in code for an architecture such as sm_90a.
constexpr uint8_t ACCELERATOR = 0x09;
// From this architecture on, a block's shared memory begins with what the driver keeps.
constexpr int RESERVES_SHARED = 90;

struct Section {
    std::string name;
    uint32_t type, link;
    uint64_t size;
    // Its content: none for one such as .nv.shared, which takes up no bytes of the file.
    Bytes bytes;
};

struct Attribute {
    uint8_t id;
    // The number that short ones hold, and the bytes of long ones.
    uint32_t value;
    Bytes bytes;
};

std::vector<Section> read_sections(const Bytes &file) {
    const uint64_t headers = file.number<uint64_t>(0x28);
    const uint16_t header_bytes = file.number<uint16_t>(0x3a), count = file.number<uint16_t>(0x3c);
    const uint16_t names = file.number<uint16_t>(0x3e);
    const auto header = [&](uint64_t section) { return file.part(headers + section * header_bytes, 0x40); };
    const auto content = [&](const Bytes &of) {
        return of.number<uint32_t>(4) == NO_BYTES ? file.part(0, 0)
                                                  : file.part(of.number<uint64_t>(0x18), of.number<uint64_t>(0x20));
    };
    if (names >= count)
        refuse(CUDA_ERROR_INVALID_IMAGE, "the cubin has no names of sections");
    const Bytes all_names = content(header(names));
    std::vector<Section> sections;
    for (uint64_t section = 0; section < count; ++section) {
        const Bytes of = header(section);
        sections.push_back({all_names.text(of.number<uint32_t>(0)), of.number<uint32_t>(4), of.number<uint32_t>(0x28),
                            of.number<uint64_t>(0x20), content(of)});
    }
    return sections;
}

std::vector<Attribute> read_attributes(const Bytes &info) {
    std::vector<Attribute> attributes;
    for (uint64_t at = 0; at + 4 <= info.size;) {
        const uint8_t format = info.number<uint8_t>(at), id = info.number<uint8_t>(at + 1);
        const uint16_t value = info.number<uint16_t>(at + 2);
        at += 4;
        // Formats 1 to 3 hold none, one or two bytes; 4 holds their count and then as many.
        const uint16_t bytes = format == 4 ? value : 0;
        attributes.push_back({id, value, info.part(at, bytes)});
        at += bytes;
    }
    return attributes;
}

// Attributes of a kernel in the section that is its own.
void read_own_attributes(const Bytes &info, ImageKernel &kernel) {
    uint32_t parameter_bytes = 0, first_parameter = 0;
    for (const Attribute &attribute : read_attributes(info)) {
        switch (attribute.id) {
        case MAX_THREADS_OF_BLOCK:
        case REQUIRED_THREADS: {
            const uint64_t threads = uint64_t(attribute.bytes.number<uint32_t>(0)) *
                                     attribute.bytes.number<uint32_t>(4) * attribute.bytes.number<uint32_t>(8);
            kernel.max_threads = int(std::min<uint64_t>(threads, MAX_THREADS));
            break;
        }
        case PARAMETER_BYTES:
            parameter_bytes = attribute.value;
            break;
        case PARAMETER:
            // In front of the first is what aligns it.
            if (attribute.bytes.number<uint16_t>(4) == 0)
                first_parameter = attribute.bytes.number<uint16_t>(6);
            break;
        }
    }
    kernel.parameter_bytes = parameter_bytes - first_parameter;
}

} // namespace

bool is_cubin(const void *data) { return memcmp(data, "\x7f" "ELF", 4) == 0; }

size_t cubin_bytes(const void *data) {
    const Bytes header{static_cast<const char *>(data), 0x40};
    const uint64_t sections = header.number<uint64_t>(0x28), section_bytes = header.number<uint16_t>(0x3a);
    const uint64_t count = header.number<uint16_t>(0x3c);
    uint64_t end = sections + section_bytes * count;
    const Bytes headers{static_cast<const char *>(data), end};
    for (uint64_t section = 0; section < count; ++section) {
        const uint64_t at = sections + section * section_bytes;
        if (headers.number<uint32_t>(at + 4) != NO_BYTES)
            end = std::max(end, headers.number<uint64_t>(at + 0x18) + headers.number<uint64_t>(at + 0x20));
    }
    return end;
}

Image read_cubin(const void *data, size_t bytes) {
    const Bytes file{static_cast<const char *>(data), bytes};
    constexpr uint8_t CLASS_64 = 2, LITTLE_ENDIAN_DATA = 1;
    if (file.number<uint8_t>(4) != CLASS_64 || file.number<uint8_t>(5) != LITTLE_ENDIAN_DATA ||
        file.number<uint16_t>(0x12) != EM_CUDA)
        refuse(CUDA_ERROR_INVALID_IMAGE, "the image is an ELF file, but no cubin");
    Image image;
    // Before CUDA 13 the flags were laid out in another way.
    constexpr uint8_t ABI_VERSION = 8;
    if (file.number<uint8_t>(8) < ABI_VERSION)
        refuse(CUDA_ERROR_INVALID_IMAGE, "the cubin is of a CUDA before 13.0, which the mock driver does not read");
    image.architecture = file.number<uint32_t>(0x30) >> 8 & 0xff;

    const std::vector<Section> sections = read_sections(file);
    const auto section_named = [&](const std::string &name) -> const Section * {
        for (const Section &section : sections)
            if (section.name == name)
                return &section;
        return nullptr;
    };
    // Places of kernels in the symbol table, to which .nv.info refers.
    std::vector<std::pair<uint64_t, size_t>> symbols;
    for (const Section &section : sections) {
        if (section.type != SYMBOL_TABLE || section.link >= sections.size())
            continue;
        constexpr uint64_t SYMBOL_BYTES = 24;
        for (uint64_t symbol = 0; (symbol + 1) * SYMBOL_BYTES <= section.bytes.size; ++symbol) {
            const Bytes of = section.bytes.part(symbol * SYMBOL_BYTES, SYMBOL_BYTES);
            if ((of.number<uint8_t>(4) & 0xf) != FUNCTION || !(of.number<uint8_t>(5) & ENTRY))
                continue;
            ImageKernel kernel;
            kernel.name = sections[section.link].bytes.text(of.number<uint32_t>(0));
            symbols.push_back({symbol, image.kernels.size()});
            image.kernels.push_back(kernel);
        }
    }
    for (ImageKernel &kernel : image.kernels) {
        const Section *const info = section_named(".nv.info." + kernel.name);
        if (!info)
            refuse(CUDA_ERROR_INVALID_IMAGE, "the cubin has no section .nv.info.%s", kernel.name.c_str());
        read_own_attributes(info->bytes, kernel);
        if (const Section *const shared = section_named(".nv.shared." + kernel.name))
            kernel.shared_bytes = int(shared->size) - (image.architecture >= RESERVES_SHARED ? SHARED_RESERVED : 0);
    }
    if (const Section *const info = section_named(".nv.info")) {
        for (const Attribute &attribute : read_attributes(info->bytes)) {
            if (attribute.id != REGISTER_COUNT && attribute.id != FRAME_SIZE)
                continue;
            for (const auto &[symbol, kernel] : symbols) {
                if (attribute.bytes.number<uint32_t>(0) != symbol)
                    continue;
                int &value = attribute.id == REGISTER_COUNT ? image.kernels[kernel].registers
                                                            : image.kernels[kernel].local_bytes;
                value = int(attribute.bytes.number<uint32_t>(4));
            }
        }
    }
    if (const Section *const compat = section_named(".nv.compat"))
        for (const Attribute &attribute : read_attributes(compat->bytes))
            if (attribute.id == ACCELERATOR)
                image.specific = attribute.value == 1;
    if (const Section *const note = section_named(".note.nv.cuinfo")) {
        // Behind the owner's name: the note's version, the PTX's architecture, the toolkit.
        const uint64_t owner = note->bytes.number<uint32_t>(0);
        const Bytes about = note->bytes.part(12 + owner, 6);
        image.virtual_architecture = about.number<uint16_t>(2);
        image.toolkit = about.number<uint16_t>(4);
    }
    return image;
}

} // namespace mock
