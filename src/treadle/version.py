"""The version of Treadle. The package, its metadata, the editors' extension and the citation file take it from here."""

VERSION = "0.2.0"
