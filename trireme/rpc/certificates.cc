#include "trireme/rpc/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme {
namespace {

// Deleters that make OpenSSL's objects fit into unique_ptr.
template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

// Returns an error with OpenSSL's reason for an operation that should not fail.
absl::Status failed(const std::string& what) {
  char reason[256] = "";
  ERR_error_string_n(ERR_get_error(), reason, sizeof(reason));
  ERR_clear_error();
  return make_status(ErrorCode::kInternal, absl::StrCat("OpenSSL could not ", what, ": ", reason));
}

// Returns an error about what the user supplied. OpenSSL's own reason would not help.
absl::Status unreadable(const std::string& what) {
  ERR_clear_error();
  return make_status(ErrorCode::kInvalidArgument, what);
}

Bio reader_of(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Makes OpenSSL fail for a key with a passphrase. By default it would ask on the terminal.
int no_passphrase(char*, int, int, void*) {
  return 0;
}

Certificate parse_certificate(const std::string& pem) {
  return Certificate(PEM_read_bio_X509(reader_of(pem).get(), nullptr, no_passphrase, nullptr));
}

Key parse_key(const std::string& pem) {
  return Key(PEM_read_bio_PrivateKey(reader_of(pem).get(), nullptr, no_passphrase, nullptr));
}

std::string text_of(const Bio& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, size);
}

absl::StatusOr<KeyAndCertificate> to_pem(EVP_PKEY* key, X509* certificate) {
  const Bio key_out(BIO_new(BIO_s_mem())), certificate_out(BIO_new(BIO_s_mem()));
  if (!PEM_write_bio_PKCS8PrivateKey(key_out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) ||
      !PEM_write_bio_X509(certificate_out.get(), certificate)) {
    return failed("write a certificate");
  }
  return KeyAndCertificate{text_of(key_out), text_of(certificate_out)};
}

bool add_extension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  return extension && X509_add_ext(certificate, extension.get(), -1);
}

bool add_name(GENERAL_NAMES* names, int type, const std::string& text) {
  GENERAL_NAME* name = GENERAL_NAME_new();
  ASN1_STRING* value = ASN1_IA5STRING_new();
  if (name == nullptr || value == nullptr ||
      !ASN1_STRING_set(value, text.data(), static_cast<int>(text.size()))) {
    GENERAL_NAME_free(name);
    ASN1_STRING_free(value);
    return false;
  }
  GENERAL_NAME_set0_value(name, type, value);
  return sk_GENERAL_NAME_push(names, name) > 0;
}

bool add_address(GENERAL_NAMES* names, ASN1_OCTET_STRING* address) {
  GENERAL_NAME* name = GENERAL_NAME_new();
  GENERAL_NAME_set0_value(name, GEN_IPADD, address);
  return sk_GENERAL_NAME_push(names, name) > 0;
}

bool add_alternative_names(X509* certificate, const CertificateSubject& subject) {
  const Names names(sk_GENERAL_NAME_new_null());
  if (!add_name(names.get(), GEN_URI, subject.uri)) return false;
  for (const std::string& host : subject.hosts) {
    ASN1_OCTET_STRING* address = a2i_IPADDRESS(host.c_str());
    const bool added = address != nullptr ? add_address(names.get(), address)
                                          : add_name(names.get(), GEN_DNS, host);
    if (!added) return false;
  }
  ERR_clear_error();  // a2i_IPADDRESS() leaves an error for each host that is not an address
  return X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, 0) == 1;
}

// Sets a random serial number, so that certificates issued at different times never share one.
bool set_serial_number(X509* certificate) {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return false;
  bytes[0] &= 0x7f;  // serial numbers are positive
  BIGNUM* number = BN_bin2bn(bytes, sizeof(bytes), nullptr);
  const bool set = BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return set;
}

// Sets the fields that do not depend on the issuer.
bool fill_in(X509* certificate, EVP_PKEY* key, const std::string& common_name,
             const CertificateValidity& validity) {
  X509_NAME* name = X509_get_subject_name(certificate);
  const auto add = [&](const char* field, const std::string& text) {
    return X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8,
                                      reinterpret_cast<const unsigned char*>(text.data()),
                                      static_cast<int>(text.size()), -1, 0) == 1;
  };
  return X509_set_version(certificate, X509_VERSION_3) && set_serial_number(certificate) &&
         X509_gmtime_adj(X509_getm_notBefore(certificate), validity.from.count()) &&
         X509_gmtime_adj(X509_getm_notAfter(certificate), validity.until.count()) &&
         add("O", "Trireme cluster") && add("CN", common_name) && X509_set_pubkey(certificate, key);
}

}  // namespace

absl::StatusOr<CertificateAuthority> CertificateAuthority::make(
    const CertificateValidity& validity) {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate(X509_new());
  X509* own = certificate.get();
  if (!key || !own || !fill_in(own, key.get(), "Trireme authority", validity) ||
      !X509_set_issuer_name(own, X509_get_subject_name(own)) ||
      !add_extension(own, own, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !add_extension(own, own, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !add_extension(own, own, NID_subject_key_identifier, "hash") ||
      !X509_sign(own, key.get(), EVP_sha256())) {
    return failed("make an authority");
  }
  TRIREME_ASSIGN_OR_RETURN(KeyAndCertificate pair, to_pem(key.get(), own));
  return CertificateAuthority(std::move(pair));
}

absl::StatusOr<CertificateAuthority> CertificateAuthority::from_pem(KeyAndCertificate own) {
  TRIREME_RETURN_IF_ERROR(inspect_certificate(own).status());
  if (X509_check_ca(parse_certificate(own.certificate).get()) == 0) {
    return unreadable("the certificate is not that of an authority");
  }
  return CertificateAuthority(std::move(own));
}

absl::StatusOr<KeyAndCertificate> CertificateAuthority::issue(
    const CertificateSubject& subject, const CertificateValidity& validity) const {
  const Key signer = parse_key(own_.key);
  const Certificate issuer = parse_certificate(own_.certificate);
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate(X509_new());
  X509* made = certificate.get();
  if (!signer || !issuer || !key || !made || !fill_in(made, key.get(), subject.uri, validity) ||
      !X509_set_issuer_name(made, X509_get_subject_name(issuer.get())) ||
      !add_extension(made, issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !add_extension(made, issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !add_extension(made, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !add_extension(made, issuer.get(), NID_subject_key_identifier, "hash") ||
      !add_extension(made, issuer.get(), NID_authority_key_identifier, "keyid") ||
      !add_alternative_names(made, subject) || !X509_sign(made, signer.get(), EVP_sha256())) {
    return failed(absl::StrCat("make a certificate for ", subject.uri));
  }
  return to_pem(key.get(), made);
}

absl::StatusOr<CertificateFacts> inspect_certificate(const KeyAndCertificate& pair) {
  const Certificate certificate = parse_certificate(pair.certificate);
  if (!certificate) return unreadable("the certificate is not a valid X.509 certificate in PEM");
  const Key key = parse_key(pair.key);
  if (!key) return unreadable("the key is not a valid private key in PEM without a passphrase");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return unreadable("the key and the certificate do not belong together");
  }
  CertificateFacts facts;
  tm until = {};
  if (!ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &until)) {
    return unreadable("the certificate has no valid expiry time");
  }
  facts.until = std::chrono::system_clock::from_time_t(timegm(&until));
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    facts.uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                            ASN1_STRING_length(uri));
  }
  return facts;
}

}  // namespace trireme
