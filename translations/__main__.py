from translations.catalogues import main

main()
